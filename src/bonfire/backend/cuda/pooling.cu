// Pooling. A thread computes a pack of channels of one pixel (channels last) or one element (row-major); gradients are
// gathered, pixel by pixel, so that nothing is added in an order that varies.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

struct Plane {
  int n, c, h, w;
};

// Where elements lie. `last` says that channels are innermost.
struct Image {
  int channels, height, width;
  bool last;

  __device__ int64_t at(int n, int c, int y, int x) const {
    return last ? ((static_cast<int64_t>(n) * height + y) * width + x) * channels + c
                : ((static_cast<int64_t>(n) * channels + c) * height + y) * width + x;
  }
};

struct Window {
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// The pack of the image that this thread computes: coordinates from a running number.
template <int width>
__device__ inline Plane coordinates(const Image& image, uint32_t i) {
  Plane p;
  if (image.last) {
    uint32_t packs = static_cast<uint32_t>(image.channels / width);
    p.c = static_cast<int>(i % packs) * width;
    i /= packs;
  }
  p.w = static_cast<int>(i % static_cast<uint32_t>(image.width));
  i /= static_cast<uint32_t>(image.width);
  p.h = static_cast<int>(i % static_cast<uint32_t>(image.height));
  i /= static_cast<uint32_t>(image.height);
  if (!image.last) {
    p.c = static_cast<int>(i % static_cast<uint32_t>(image.channels));
    i /= static_cast<uint32_t>(image.channels);
  }
  p.n = static_cast<int>(i);
  return p;
}

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    max_pool(Image in, Image out, Window window, uint32_t count, const T* x, T* y) {
  using C = Compute<T>;
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Plane p = coordinates<width>(out, i);
  Pack<T, width> best;
  bool first = true;
  int top = p.h * window.stride_h - window.pad_h, left = p.w * window.stride_w - window.pad_w;
  for (int r = max(top, 0); r < min(top + window.kernel_h, in.height); ++r) {
    for (int s = max(left, 0); s < min(left + window.kernel_w, in.width); ++s) {
      Pack<T, width> pack = load_pack<width>(x + in.at(p.n, p.c, r, s));
#pragma unroll
      for (int k = 0; k < width; ++k) {
        C value = load(pack.item[k]), old = load(best.item[k]);
        if (first || value > old || (value != value && old == old)) best.item[k] = pack.item[k];
      }
      first = false;
    }
  }
  store_pack(y + out.at(p.n, p.c, p.h, p.w), best);
}

// Windows that contain row `at`: [first, last].
__device__ inline int first_window(int at, int kernel, int stride, int pad) {
  int past = at + pad - kernel + 1;
  return past <= 0 ? 0 : (past + stride - 1) / stride;
}
__device__ inline int last_window(int at, int stride, int pad, int windows) {
  return min((at + pad) / stride, windows - 1);
}

template <class C>
__device__ inline bool same_value(C a, C b) {
  return a == b || (a != a && b != b);
}

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient(Image in, Image out, Window window, uint32_t count, const T* dy, const T* x, const T* y, T* dx) {
  using C = Compute<T>;
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Plane p = coordinates<width>(in, i);
  int64_t own = in.at(p.n, p.c, p.h, p.w);
  Pack<T, width> value = load_pack<width>(x + own), result;
  C sum[width] = {};
  int last_h = last_window(p.h, window.stride_h, window.pad_h, out.height);
  int last_w = last_window(p.w, window.stride_w, window.pad_w, out.width);
  for (int oh = first_window(p.h, window.kernel_h, window.stride_h, window.pad_h); oh <= last_h; ++oh) {
    for (int ow = first_window(p.w, window.kernel_w, window.stride_w, window.pad_w); ow <= last_w; ++ow) {
      int64_t at = out.at(p.n, p.c, oh, ow);
      Pack<T, width> maximum = load_pack<width>(y + at), gradient = load_pack<width>(dy + at);
      bool mine[width];
#pragma unroll
      for (int k = 0; k < width; ++k) mine[k] = same_value(load(value.item[k]), load(maximum.item[k]));
      // An earlier pixel of the window with the same value takes it.
      int top = max(oh * window.stride_h - window.pad_h, 0), left = max(ow * window.stride_w - window.pad_w, 0);
      int right = min(ow * window.stride_w - window.pad_w + window.kernel_w, in.width);
      for (int r = top; r <= p.h; ++r) {
        for (int s = left; s < (r == p.h ? p.w : right); ++s) {
          Pack<T, width> earlier = load_pack<width>(x + in.at(p.n, p.c, r, s));
#pragma unroll
          for (int k = 0; k < width; ++k)
            if (same_value(load(earlier.item[k]), load(maximum.item[k]))) mine[k] = false;
        }
      }
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (mine[k]) sum[k] += load(gradient.item[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < width; ++k) result.item[k] = store<T>(sum[k]);
  store_pack(dx + own, result);
}

// The same where windows lie side by side (stride = kernel, no padding): a thread for each window, and for what is left
// of one at the far edges, which no window covers.
template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient_apart(Image in, Image out, Image cells, Window window, uint32_t count, const T* dy, const T* x,
                            const T* y, T* dx) {
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Plane p = coordinates<width>(cells, i);
  bool covered = p.h < out.height && p.w < out.width;
  Pack<T, width> maximum, gradient;
  if (covered) {
    int64_t at = out.at(p.n, p.c, p.h, p.w);
    maximum = load_pack<width>(y + at);
    gradient = load_pack<width>(dy + at);
  }
  bool given[width] = {};
  int bottom = min((p.h + 1) * window.stride_h, in.height), right = min((p.w + 1) * window.stride_w, in.width);
  for (int r = p.h * window.stride_h; r < bottom; ++r) {
    for (int s = p.w * window.stride_w; s < right; ++s) {
      int64_t own = in.at(p.n, p.c, r, s);
      Pack<T, width> value, result;
      if (covered) value = load_pack<width>(x + own);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        bool mine = covered && !given[k] && same_value(load(value.item[k]), load(maximum.item[k]));
        result.item[k] = mine ? gradient.item[k] : store<T>(Compute<T>(0));
        given[k] = given[k] || mine;
      }
      store_pack(dx + own, result);
    }
  }
}

// Windows of an average along one axis: those of a kernel that moves, or the adaptive ones.
struct Span {
  int kernel, stride, pad, extent, windows;
  bool adaptive, count_pad;

  __device__ int begin(int i) const { return adaptive ? i * extent / windows : max(i * stride - pad, 0); }
  __device__ int end(int i) const {
    return adaptive ? ((i + 1) * extent + windows - 1) / windows : min(i * stride - pad + kernel, extent);
  }
  __device__ int divisor(int i) const {
    return adaptive || !count_pad ? end(i) - begin(i)
                                  : min(i * stride - pad + kernel, extent + pad) - (i * stride - pad);
  }
  __device__ int first(int at) const {
    return adaptive ? at * windows / extent : first_window(at, kernel, stride, pad);
  }
  __device__ int last(int at) const {
    return adaptive ? ((at + 1) * windows + extent - 1) / extent - 1 : last_window(at, stride, pad, windows);
  }
};

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    average(Image in, Image out, Span rows, Span columns, uint32_t count, const T* x, T* y) {
  using C = Compute<T>;
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Plane p = coordinates<width>(out, i);
  C sum[width] = {};
  for (int r = rows.begin(p.h); r < rows.end(p.h); ++r) {
    for (int s = columns.begin(p.w); s < columns.end(p.w); ++s) {
      Pack<T, width> pack = load_pack<width>(x + in.at(p.n, p.c, r, s));
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] += load(pack.item[k]);
    }
  }
  C divisor = static_cast<C>(rows.divisor(p.h) * columns.divisor(p.w));
  Pack<T, width> result;
#pragma unroll
  for (int k = 0; k < width; ++k) result.item[k] = store<T>(sum[k] / divisor);
  store_pack(y + out.at(p.n, p.c, p.h, p.w), result);
}

template <class T, int width>
__global__ void __launch_bounds__(kThreads)
    average_gradient(Image in, Image out, Span rows, Span columns, uint32_t count, const T* dy, T* dx) {
  using C = Compute<T>;
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  Plane p = coordinates<width>(in, i);
  C sum[width] = {};
  for (int oh = rows.first(p.h); oh <= rows.last(p.h); ++oh) {
    for (int ow = columns.first(p.w); ow <= columns.last(p.w); ++ow) {
      Pack<T, width> pack = load_pack<width>(dy + out.at(p.n, p.c, oh, ow));
      C divisor = static_cast<C>(rows.divisor(oh) * columns.divisor(ow));
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] += load(pack.item[k]) / divisor;
    }
  }
  Pack<T, width> result;
#pragma unroll
  for (int k = 0; k < width; ++k) result.item[k] = store<T>(sum[k]);
  store_pack(dx + in.at(p.n, p.c, p.h, p.w), result);
}

// --- hosts ---------------------------------------------------------------------------------------------------------

struct Setup {
  Image in, out;  // x's and y's
  Layout layout;  // of everything
  int pack = 1;   // channels of a thread
  uint32_t packs_in = 0, packs_out = 0;
  DType dtype = DType::f32;
};

// `arriving` is the layout of the image that the op mainly reads.
Setup set_up(const Shape& x, const Shape& y, DType dtype, const Layout& arriving, const Shape& arriving_shape) {
  Setup setup;
  bool last = same_order(arriving_shape, arriving, channels_last());
  setup.layout = last ? channels_last() : Layout{};
  auto image = [&](const Shape& shape) {
    return Image{static_cast<int>(shape[1]), static_cast<int>(shape[2]), static_cast<int>(shape[3]), last};
  };
  setup.in = image(x);
  setup.out = image(y);
  setup.dtype = dtype;
  if (last)
    setup.pack = dispatch_floating(dtype, [&](auto tag) { return pack_width<typename decltype(tag)::type>(x[1]); });
  BONFIRE_CHECK(x.count() < (int64_t{1} << 31) && y.count() < (int64_t{1} << 31), "an image of {} elements", x.count());
  setup.packs_in = static_cast<uint32_t>(x.count() / setup.pack);
  setup.packs_out = static_cast<uint32_t>(y.count() / setup.pack);
  return setup;
}

// A candidate for images in the setup's layout: body(type tag, width, run).
template <class Body>
std::vector<Candidate> image_candidate(const KernelRequest& request, const Setup& setup, uint32_t packs, Body body) {
  std::vector<Candidate> list = one_candidate(request, [=](const Run& run) {
    if (packs == 0) return;
    dispatch_floating(setup.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dispatch_width<T>(setup.pack, [&](auto width) { body(tag, width, run); });
    });
    check(cudaGetLastError(), "pooling");
  });
  for (size_t i = 0; i < request.node.inputs.size(); ++i)
    list[0].input_layouts[i] = unless_same(request.node.inputs[i].spec().shape, setup.layout, request.arriving[i]);
  const Shape& shape = request.node.outputs[0].shape;
  list[0].output_layouts[0] = same_order(shape, setup.layout, {}) ? Layout{} : setup.layout;
  return list;
}

Window window_of(const Attributes& a) {
  auto number = [&](const char* name, size_t i) { return static_cast<int>(a.list(name)[i]); };
  return {number("kernel", 0), number("kernel", 1),  number("stride", 0),
          number("stride", 1), number("padding", 0), number("padding", 1)};
}

std::vector<Candidate> max_pool_forward(const KernelRequest& request) {
  const TensorSpec &x = request.node.inputs[0].spec(), &y = request.node.outputs[0];
  if (!has_kernels(x.dtype)) return {};
  Setup setup = set_up(x.shape, y.shape, x.dtype, request.arriving[0], x.shape);
  Window window = window_of(request.node.attributes);
  return image_candidate(request, setup, setup.packs_out, [=](auto tag, auto width, const Run& run) {
    using T = typename decltype(tag)::type;
    max_pool<T, width.value><<<blocks_for(setup.packs_out, kThreads), kThreads, 0, stream_of(run)>>>(
        setup.in, setup.out, window, setup.packs_out, run.input<T>(0), run.output<T>(0));
  });
}

std::vector<Candidate> max_pool_backward(const KernelRequest& request) {
  const TensorSpec &dy = request.node.inputs[0].spec(), &x = request.node.inputs[1].spec();
  if (!has_kernels(x.dtype)) return {};
  Setup setup = set_up(x.shape, dy.shape, x.dtype, request.arriving[1], x.shape);
  Window window = window_of(request.node.attributes);
  if (window.kernel_h == window.stride_h && window.kernel_w == window.stride_w && window.pad_h == 0 &&
      window.pad_w == 0) {
    Image cells = setup.in;
    cells.height = (setup.in.height + window.stride_h - 1) / window.stride_h;
    cells.width = (setup.in.width + window.stride_w - 1) / window.stride_w;
    int64_t pixels = x.shape[0] * cells.height * cells.width;
    auto count = static_cast<uint32_t>(pixels * x.shape[1] / setup.pack);
    return image_candidate(request, setup, count, [=](auto tag, auto width, const Run& run) {
      using T = typename decltype(tag)::type;
      max_pool_gradient_apart<T, width.value><<<blocks_for(count, kThreads), kThreads, 0, stream_of(run)>>>(
          setup.in, setup.out, cells, window, count, run.input<T>(0), run.input<T>(1), run.input<T>(2),
          run.output<T>(0));
    });
  }
  return image_candidate(request, setup, setup.packs_in, [=](auto tag, auto width, const Run& run) {
    using T = typename decltype(tag)::type;
    max_pool_gradient<T, width.value><<<blocks_for(setup.packs_in, kThreads), kThreads, 0, stream_of(run)>>>(
        setup.in, setup.out, window, setup.packs_in, run.input<T>(0), run.input<T>(1), run.input<T>(2),
        run.output<T>(0));
  });
}

Span span_of(const GraphNode& node, int axis, int64_t extent, int64_t windows) {
  Span span{};
  span.extent = static_cast<int>(extent);
  span.windows = static_cast<int>(windows);
  span.adaptive = !node.attributes.has("kernel");
  if (span.adaptive) return span;
  auto i = static_cast<size_t>(axis);
  span.kernel = static_cast<int>(node.attributes.list("kernel")[i]);
  span.stride = static_cast<int>(node.attributes.list("stride")[i]);
  span.pad = static_cast<int>(node.attributes.list("padding")[i]);
  span.count_pad = node.attributes.flag("count_include_pad");
  return span;
}

std::vector<Candidate> average_forward(const KernelRequest& request) {
  const TensorSpec &x = request.node.inputs[0].spec(), &y = request.node.outputs[0];
  if (!has_kernels(x.dtype)) return {};
  Setup setup = set_up(x.shape, y.shape, x.dtype, request.arriving[0], x.shape);
  Span rows = span_of(request.node, 0, x.shape[2], y.shape[2]),
       columns = span_of(request.node, 1, x.shape[3], y.shape[3]);
  return image_candidate(request, setup, setup.packs_out, [=](auto tag, auto width, const Run& run) {
    using T = typename decltype(tag)::type;
    average<T, width.value><<<blocks_for(setup.packs_out, kThreads), kThreads, 0, stream_of(run)>>>(
        setup.in, setup.out, rows, columns, setup.packs_out, run.input<T>(0), run.output<T>(0));
  });
}

std::vector<Candidate> average_backward(const KernelRequest& request) {
  const TensorSpec &dy = request.node.inputs[0].spec(), &dx = request.node.outputs[0];
  if (!has_kernels(dy.dtype)) return {};
  // A pooled image of one pixel lies the same either way: then what comes before is most likely channels-last.
  Setup setup = set_up(dx.shape, dy.shape, dy.dtype, request.arriving[0], dy.shape);
  Span rows = span_of(request.node, 0, dx.shape[2], dy.shape[2]),
       columns = span_of(request.node, 1, dx.shape[3], dy.shape[3]);
  return image_candidate(request, setup, setup.packs_in, [=](auto tag, auto width, const Run& run) {
    using T = typename decltype(tag)::type;
    average_gradient<T, width.value><<<blocks_for(setup.packs_in, kThreads), kThreads, 0, stream_of(run)>>>(
        setup.in, setup.out, rows, columns, setup.packs_in, run.input<T>(0), run.output<T>(0));
  });
}

const bool registered = register_kernel("max_pool2d", DeviceType::cuda, max_pool_forward) &&
                        register_kernel("max_pool2d_gradient", DeviceType::cuda, max_pool_backward) &&
                        register_kernel("avg_pool2d", DeviceType::cuda, average_forward) &&
                        register_kernel("avg_pool2d_gradient", DeviceType::cuda, average_backward) &&
                        register_kernel("adaptive_avg_pool2d", DeviceType::cuda, average_forward) &&
                        register_kernel("adaptive_avg_pool2d_gradient", DeviceType::cuda, average_backward);

}  // namespace

}  // namespace bonfire::cuda
