// Pooling and its gradients. Every op is a table of windows along each axis, made when the kernel is built, and one
// loop over windows: a pixel at a time in row-major images, a block of channels at a time in channels-last ones.

#include "bonfire/ops/pooling.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

struct Window {
  int64_t begin, end;  // inside the input
  int64_t weight;      // its share of an average's divisor
};

std::vector<Window> sliding_windows(const Attributes& a, int axis, int64_t extent) {
  int64_t kernel = a.ints("kernel")[axis], stride = a.ints("stride")[axis], padding = a.ints("padding")[axis];
  bool count_padding = a.has("count_include_pad") && a.flag("count_include_pad");
  std::vector<Window> windows(static_cast<size_t>(pooled_extent(extent, kernel, stride, padding, a.flag("ceil_mode"))));
  int64_t first = -padding;
  for (Window& window : windows) {
    int64_t last = std::min(first + kernel, extent + padding);  // a part beyond the padding never counts
    window = {std::max<int64_t>(first, 0), std::min(last, extent), 0};
    window.weight = count_padding ? last - first : window.end - window.begin;
    first += stride;
  }
  return windows;
}

std::vector<Window> adaptive_windows(int64_t extent, int64_t outputs) {
  std::vector<Window> windows(static_cast<size_t>(outputs));
  for (int64_t i = 0; i < outputs; ++i) {
    int64_t begin = i * extent / outputs, end = ((i + 1) * extent + outputs - 1) / outputs;
    windows[static_cast<size_t>(i)] = {begin, end, end - begin};
  }
  return windows;
}

struct PoolingJob {
  int64_t batch, channels, height, width;       // of the input image [N, C, H, W]
  std::vector<Window> rows, columns;            // one per output row, column
  int64_t kernel = 0, stride = 0, padding = 0;  // along the width; of sliding windows

  int64_t out_pixels() const { return static_cast<int64_t>(rows.size() * columns.size()); }

  // Windows of 2 × 2 side by side: the usual ones, which get loops of their own.
  bool pairs() const { return pairs(rows) && pairs(columns); }
  bool windows_cover() const { return cover(rows, height) && cover(columns, width); }
  bool windows_tile() const { return windows_cover() && disjoint(rows) && disjoint(columns); }

 private:
  static bool pairs(const std::vector<Window>& windows) {
    for (size_t i = 0; i < windows.size(); ++i)
      if (windows[i].begin != static_cast<int64_t>(2 * i) || windows[i].end != windows[i].begin + 2) return false;
    return true;
  }
  static bool cover(const std::vector<Window>& windows, int64_t extent) {
    int64_t reached = 0;
    for (const Window& window : windows) {
      if (window.begin > reached) return false;
      reached = std::max(reached, window.end);
    }
    return reached == extent;
  }
  static bool disjoint(const std::vector<Window>& windows) {
    for (size_t i = 1; i < windows.size(); ++i)
      if (windows[i].begin < windows[i - 1].end) return false;
    return true;
  }
};

// Calls body(row window, column window, index of the output pixel).
template <class Body>
void for_each_window(const PoolingJob& job, const Body& body) {
  int64_t output = 0;
  for (const Window& row : job.rows)
    for (const Window& column : job.columns) body(row, column, output++);
}

// Calls body(pixel) for each pixel of a window, in row-major order.
template <class Body>
void for_each_pixel(const PoolingJob& job, const Window& row, const Window& column, const Body& body) {
  for (int64_t h = row.begin; h < row.end; ++h)
    for (int64_t w = column.begin; w < column.end; ++w) body(h * job.width + w);
}

// Calls body(first pixel, pixels) for each run of a window's pixels that lie side by side.
template <class Body>
void for_each_run(const PoolingJob& job, const Window& row, const Window& column, const Body& body) {
  const int64_t width = column.end - column.begin, first = row.begin * job.width + column.begin;
  if (width == job.width) return body(first, (row.end - row.begin) * width);
  for (int64_t h = row.begin; h < row.end; ++h) body(h * job.width + column.begin, width);
}

// ---- row-major: one plane [H, W] at a time ----

constexpr int64_t kElementsPerTask = 8192;
constexpr int64_t kParts = 64;  // ranges of planes that have working memory of their own

template <class Body>
void for_each_plane(const PoolingJob& job, ThreadPool& threads, const Body& body) {
  int64_t size = std::max<int64_t>(job.height * job.width, 1);
  threads.parallel_for(job.batch * job.channels, (kElementsPerTask + size - 1) / size, [&](int64_t plane, int64_t end) {
    for (; plane < end; ++plane) body(plane * job.height * job.width, plane * job.out_pixels());
  });
}

// NaN wins over everything, also over what comes after it.
template <class Acc>
Acc larger(Acc best, Acc value) {
  best = value > best ? value : best;
  return value != value ? value : best;
}

template <class Acc>
Acc largest(Acc a, Acc b, Acc c, Acc d) {
  return larger(larger(a, b), larger(c, d));
}

// The same by bits of bf16, which are integers in the same order when those of negative numbers are turned round; the
// same again turns them back. Twice as many of them as of f32 fit a vector.
constexpr int16_t kBf16Size = 0x7FFF, kBf16Infinity = 0x7F80;  // all but the sign; NaN is larger than infinity
int16_t turned(int16_t bits) { return static_cast<int16_t>(bits ^ ((bits >> 15) & kBf16Size)); }
int16_t largest(int16_t a, int16_t b, int16_t c, int16_t d) {
  auto rank = [](int16_t bits) {
    const auto size = static_cast<int16_t>(bits & kBf16Size), in_order = turned(bits);
    return size > kBf16Infinity ? size : in_order;
  };
  auto larger_of = [](int16_t first, int16_t second) { return first > second ? first : second; };
  return turned(larger_of(larger_of(rank(a), rank(b)), larger_of(rank(c), rank(d))));
}

template <class Acc>
void enlarge(const Acc* values, int64_t stride, Acc* best, int64_t count) {
  auto loop = [&](auto step) {
    for (int64_t i = 0; i < count; ++i) best[i] = larger(best[i], values[i * step]);
  };
  if (stride == 1) {
    loop(std::integral_constant<int64_t, 1>());
  } else if (stride == 2) {
    loop(std::integral_constant<int64_t, 2>());
  } else {
    loop(stride);
  }
}

// The maxima of one row of windows, in two vectorised steps: down the rows into a line with −∞ around it, then across.
template <class T>
class RowMaximum {
 public:
  using Acc = Compute<T>;
  static int64_t elements(const PoolingJob& job) { return line_length(job) + static_cast<int64_t>(job.columns.size()); }

  RowMaximum(const PoolingJob& job, Acc* memory) : job_(job), line_(memory), best_(memory + line_length(job)) {
    std::fill_n(line_, line_length(job), -std::numeric_limits<Acc>::infinity());
  }

  void run(const T* plane, const Window& row, T* y) {
    int64_t outputs = static_cast<int64_t>(job_.columns.size());
    Acc* line = line_ + job_.padding;
    std::fill_n(line, job_.width, -std::numeric_limits<Acc>::infinity());
    for (int64_t h = row.begin; h < row.end; ++h)
      for (int64_t w = 0; w < job_.width; ++w) line[w] = larger(line[w], static_cast<Acc>(plane[h * job_.width + w]));
    std::fill_n(best_, outputs, -std::numeric_limits<Acc>::infinity());
    for (int64_t k = 0; k < job_.kernel; ++k) enlarge(line_ + k, job_.stride, best_, outputs);
    for (int64_t i = 0; i < outputs; ++i) y[i] = static_cast<T>(best_[i]);
  }

 private:
  static int64_t line_length(const PoolingJob& job) {
    int64_t reach = (static_cast<int64_t>(job.columns.size()) - 1) * job.stride + job.kernel;
    return std::max(reach, job.padding + job.width);
  }

  const PoolingJob& job_;
  Acc* line_;
  Acc* best_;  // [OW]
};

// Rows of a plane that a row of 2 × 2 windows covers.
template <class T>
void maximum_of_pairs(const T* __restrict upper, const T* __restrict lower, T* __restrict y, int64_t outputs) {
  using Acc = Compute<T>;
  for (int64_t i = 0; i < outputs; ++i) {
    Acc above = larger(static_cast<Acc>(upper[2 * i]), static_cast<Acc>(upper[2 * i + 1]));
    Acc below = larger(static_cast<Acc>(lower[2 * i]), static_cast<Acc>(lower[2 * i + 1]));
    y[i] = static_cast<T>(larger(above, below));
  }
}

template <class Acc>
bool is_maximum(Acc value, Acc best) {
  return (value == best) | (value != value);
}
bool is_maximum(int16_t value, int16_t best) {  // the same by bits of bf16
  const bool zeros = ((value | best) & kBf16Size) == 0;
  return (value == best) | zeros | ((value & kBf16Size) > kBf16Infinity);
}

// What a pixel gets of a window's gradient, which goes to the first pixel that is the maximum. `left` is what has not
// found its pixel yet.
template <class Acc>
Acc take(Acc value, Acc best, Acc& left) {
  const bool here = is_maximum(value, best);
  const Acc taken = here ? left : Acc(0);
  left = here ? Acc(0) : left;
  return taken;
}

template <class T>
struct PairRows {
  T *upper, *lower;
};

template <class T>
void maximum_gradient_of_pairs(const T* __restrict dy, const T* __restrict y, PairRows<const T> x, PairRows<T> dx,
                               int64_t outputs) {
  using Acc = Compute<T>;
  const T* __restrict upper = x.upper, * __restrict lower = x.lower;
  T* __restrict to_upper = dx.upper, * __restrict to_lower = dx.lower;
  for (int64_t i = 0; i < outputs; ++i) {
    const Acc best = static_cast<Acc>(y[i]);
    Acc left = static_cast<Acc>(dy[i]);
    to_upper[2 * i] = static_cast<T>(take(static_cast<Acc>(upper[2 * i]), best, left));
    to_upper[2 * i + 1] = static_cast<T>(take(static_cast<Acc>(upper[2 * i + 1]), best, left));
    to_lower[2 * i] = static_cast<T>(take(static_cast<Acc>(lower[2 * i]), best, left));
    to_lower[2 * i + 1] = static_cast<T>(take(static_cast<Acc>(lower[2 * i + 1]), best, left));
  }
}

// Calls body(first element of the upper row in the input, first element of the row in the output).
template <class Body>
void for_each_pair_row(const PoolingJob& job, int64_t in, int64_t out, const Body& body) {
  for (size_t row = 0; row < job.rows.size(); ++row)
    body(in + static_cast<int64_t>(2 * row) * job.width, out + static_cast<int64_t>(row * job.columns.size()));
}

struct Planes {
  template <class T>
  static void maximum(const PoolingJob& job, const T* x, T* y, const Run& run) {
    if (job.pairs()) {
      for_each_plane(job, *run.threads, [&](int64_t in, int64_t out) {
        for_each_pair_row(job, in, out, [&](int64_t upper, int64_t row) {
          maximum_of_pairs(x + upper, x + upper + job.width, y + row, static_cast<int64_t>(job.columns.size()));
        });
      });
      return;
    }
    int64_t planes = job.batch * job.channels, parts = std::min(planes, kParts);
    run.threads->run(parts, [&](int64_t part) {
      RowMaximum<T> maximum(job, static_cast<Compute<T>*>(run.workspace) + part * RowMaximum<T>::elements(job));
      for (int64_t plane = planes * part / parts; plane < planes * (part + 1) / parts; ++plane)
        for (size_t row = 0; row < job.rows.size(); ++row)
          maximum.run(x + plane * job.height * job.width, job.rows[row],
                      y + plane * job.out_pixels() + static_cast<int64_t>(row * job.columns.size()));
    });
  }
  template <class T>
  static size_t maximum_bytes(const PoolingJob& job) {
    return static_cast<size_t>(kParts * RowMaximum<T>::elements(job)) * sizeof(Compute<T>);
  }

  template <class T>
  static void maximum_gradient(const PoolingJob& job, const T* dy, const T* x, const T* y, T* dx, ThreadPool& threads) {
    using Acc = Compute<T>;
    const bool pairs = job.pairs(), cover = job.windows_cover();
    for_each_plane(job, threads, [&](int64_t in, int64_t out) {
      if (!pairs || !cover) std::fill_n(dx + in, job.height * job.width, T(0));
      if (pairs) {
        for_each_pair_row(job, in, out, [&](int64_t upper, int64_t row) {
          const int64_t lower = upper + job.width;
          maximum_gradient_of_pairs(dy + row, y + row, PairRows<const T>{x + upper, x + lower},
                                    PairRows<T>{dx + upper, dx + lower}, static_cast<int64_t>(job.columns.size()));
        });
        return;
      }
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        Acc best = static_cast<Acc>(y[out + output]);
        Acc left = static_cast<Acc>(dy[out + output]);  // the gradient, until it has found its pixel
        for_each_pixel(job, row, column, [&](int64_t pixel) {
          Acc value = static_cast<Acc>(x[in + pixel]);
          bool here = (value == best) | (value != value);
          dx[in + pixel] = static_cast<T>(static_cast<Acc>(dx[in + pixel]) + (here ? left : Acc(0)));
          left = here ? Acc(0) : left;
        });
      });
    });
  }

  template <class T>
  static void average(const PoolingJob& job, const T* x, T* y, ThreadPool& threads) {
    using Acc = Compute<T>;
    for_each_plane(job, threads, [&](int64_t in, int64_t out) {
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        Acc sum = 0;
        for_each_run(job, row, column, [&](int64_t pixel, int64_t count) {
          const T* run = x + in + pixel;
          auto value = [=](int64_t i) { return static_cast<Acc>(run[i]); };
          if (count >= kLanes) {
            sum += row_sum<Acc>(count, value);
          } else {
            for (int64_t i = 0; i < count; ++i) sum += value(i);
          }
        });
        y[out + output] = static_cast<T>(sum / static_cast<Acc>(row.weight * column.weight));
      });
    });
  }

  template <class T>
  static void average_gradient(const PoolingJob& job, const T* dy, T* dx, ThreadPool& threads) {
    using Acc = Compute<T>;
    const bool once = job.windows_tile();  // each pixel is in one window
    for_each_plane(job, threads, [&](int64_t in, int64_t out) {
      if (!once) std::fill_n(dx + in, job.height * job.width, T(0));
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        const Acc share = static_cast<Acc>(dy[out + output]) / static_cast<Acc>(row.weight * column.weight);
        for_each_run(job, row, column, [&](int64_t pixel, int64_t count) {
          T* run = dx + in + pixel;
          if (once) {
            std::fill_n(run, count, static_cast<T>(share));
          } else {
            for (int64_t i = 0; i < count; ++i) run[i] = static_cast<T>(static_cast<Acc>(run[i]) + share);
          }
        });
      });
    });
  }
};

// ---- channels-last: a block of channels of one image [H, W, C] at a time ----

constexpr int64_t kChannels = 64;  // of a block

// Calls body(first element of the block in the input, in the output, channels of the block).
template <class Body>
void for_each_block(const PoolingJob& job, ThreadPool& threads, const Body& body) {
  int64_t blocks = (job.channels + kChannels - 1) / kChannels;
  threads.run(job.batch * blocks, [&](int64_t task) {
    int64_t image = task / blocks, channel = task % blocks * kChannels;
    body(image * job.height * job.width * job.channels + channel, image * job.out_pixels() * job.channels + channel,
         std::min(kChannels, job.channels - channel));
  });
}

struct Rows {
  template <class T>
  static void zero_block(const PoolingJob& job, T* dx, int64_t channels) {
    for (int64_t pixel = 0; pixel < job.height * job.width; ++pixel)
      std::fill_n(dx + pixel * job.channels, channels, T(0));
  }

  // Calls body(begin, count) on vectors that cover [0, channels), with a count that is a constant where it can be. The
  // last vector begins early enough to be whole, so some channels are done twice: only for bodies that write what they
  // do not read.
  template <class Body>
  static void for_each_vector(int64_t channels, const Body& body) {
    if (channels < kLanes) return body(0, channels);
    constexpr std::integral_constant<int64_t, kLanes> kVector;
    int64_t begin = 0;
    for (; begin + kLanes <= channels; begin += kLanes) body(begin, kVector);
    if (begin < channels) body(channels - kLanes, kVector);
  }

  // The four pixels of a 2 × 2 window, from its first element on.
  template <class T>
  struct Four {
    T *a, *b, *c, *d;

    Four(const PoolingJob& job, T* image, const Window& row, const Window& column)
        : a(image + (row.begin * job.width + column.begin) * job.channels),
          b(a + job.channels),
          c(a + job.width * job.channels),
          d(c + job.channels) {}
    Four(const Four& other, int64_t channel)
        : a(other.a + channel), b(other.b + channel), c(other.c + channel), d(other.d + channel) {}
  };

  // At most kLanes numbers, bf16 as its bits. They are computed in such copies, which overlap nothing.
  template <class T>
  struct Lanes {
    using Number = std::conditional_t<std::is_same_v<T, bfloat16>, int16_t, T>;
    Number at[kLanes];

    template <class Count>
    Lanes(const T* from, Count count) {
      std::memcpy(at, from, static_cast<size_t>(count) * sizeof(T));
    }
    template <class Count>
    void store(T* to, Count count) const {
      std::memcpy(static_cast<void*>(to), at, static_cast<size_t>(count) * sizeof(T));
    }
  };

  // At most kLanes channels of a window.
  template <class T, class Count>
  static void maximum_of_four(const Four<const T>& x, T* y, Count count) {
    Lanes<T> a(x.a, count), b(x.b, count), c(x.c, count), d(x.d, count);
    for (int64_t i = 0; i < count; ++i) a.at[i] = largest(a.at[i], b.at[i], c.at[i], d.at[i]);
    a.store(y, count);
  }

  template <class T, class Count>
  static void gradient_of_four(const T* dy, const T* y, const Four<const T>& x, const Four<T>& dx, Count count) {
    const Lanes<T> best(y, count), given(dy, count);
    Lanes<T> a(x.a, count), b(x.b, count), c(x.c, count), d(x.d, count);
    for (int64_t i = 0; i < count; ++i) {
      auto left = given.at[i];
      a.at[i] = take(a.at[i], best.at[i], left);
      b.at[i] = take(b.at[i], best.at[i], left);
      c.at[i] = take(c.at[i], best.at[i], left);
      d.at[i] = take(d.at[i], best.at[i], left);
    }
    a.store(dx.a, count);
    b.store(dx.b, count);
    c.store(dx.c, count);
    d.store(dx.d, count);
  }

  template <class T>
  static void maximum(const PoolingJob& job, const T* x, T* y, const Run& run) {
    using Acc = Compute<T>;
    if (job.pairs()) {
      for_each_block(job, *run.threads, [&](int64_t in, int64_t out, int64_t channels) {
        for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
          const Four<const T> from(job, x + in, row, column);
          T* result = y + out + output * job.channels;
          for_each_vector(channels, [&](int64_t begin, auto count) {
            maximum_of_four(Four<const T>(from, begin), result + begin, count);
          });
        });
      });
      return;
    }
    for_each_block(job, *run.threads, [&](int64_t in, int64_t out, int64_t channels) {
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        Acc best[kChannels];
        std::fill_n(best, channels, -std::numeric_limits<Acc>::infinity());
        for_each_pixel(job, row, column, [&](int64_t pixel) {
          const T* values = x + in + pixel * job.channels;
          for (int64_t c = 0; c < channels; ++c) best[c] = larger(best[c], static_cast<Acc>(values[c]));
        });
        T* result = y + out + output * job.channels;
        for (int64_t c = 0; c < channels; ++c) result[c] = static_cast<T>(best[c]);
      });
    });
  }

  template <class T>
  static void maximum_gradient(const PoolingJob& job, const T* dy, const T* x, const T* y, T* dx, ThreadPool& threads) {
    using Acc = Compute<T>;
    const bool pairs = job.pairs(), cover = job.windows_cover();
    for_each_block(job, threads, [&](int64_t in, int64_t out, int64_t channels) {
      if (!pairs || !cover) zero_block(job, dx + in, channels);
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        const int64_t at = out + output * job.channels;
        if (pairs) {
          const Four<const T> from(job, x + in, row, column);
          const Four<T> to(job, dx + in, row, column);
          for_each_vector(channels, [&](int64_t begin, auto count) {
            gradient_of_four(dy + at + begin, y + at + begin, Four<const T>(from, begin), Four<T>(to, begin), count);
          });
          return;
        }
        Acc best[kChannels], left[kChannels];
        for (int64_t c = 0; c < channels; ++c) {
          best[c] = static_cast<Acc>(y[at + c]);
          left[c] = static_cast<Acc>(dy[at + c]);
        }
        for_each_pixel(job, row, column, [&](int64_t pixel) {
          const T* values = x + in + pixel * job.channels;
          T* gradients = dx + in + pixel * job.channels;
#pragma GCC ivdep
          for (int64_t c = 0; c < channels; ++c)
            gradients[c] =
                static_cast<T>(static_cast<Acc>(gradients[c]) + take(static_cast<Acc>(values[c]), best[c], left[c]));
        });
      });
    });
  }

  template <class T>
  static void average(const PoolingJob& job, const T* x, T* y, ThreadPool& threads) {
    using Acc = Compute<T>;
    for_each_block(job, threads, [&](int64_t in, int64_t out, int64_t channels) {
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        Acc sum[kChannels] = {};
        for_each_pixel(job, row, column, [&](int64_t pixel) {
          const T* values = x + in + pixel * job.channels;
          for (int64_t c = 0; c < channels; ++c) sum[c] += static_cast<Acc>(values[c]);
        });
        T* result = y + out + output * job.channels;
        Acc divisor = static_cast<Acc>(row.weight * column.weight);
        for (int64_t c = 0; c < channels; ++c) result[c] = static_cast<T>(sum[c] / divisor);
      });
    });
  }

  template <class T>
  static void average_gradient(const PoolingJob& job, const T* dy, T* dx, ThreadPool& threads) {
    using Acc = Compute<T>;
    for_each_block(job, threads, [&](int64_t in, int64_t out, int64_t channels) {
      zero_block(job, dx + in, channels);
      for_each_window(job, [&](const Window& row, const Window& column, int64_t output) {
        Acc share[kChannels], divisor = static_cast<Acc>(row.weight * column.weight);
        for (int64_t c = 0; c < channels; ++c)
          share[c] = static_cast<Acc>(dy[out + output * job.channels + c]) / divisor;
        for_each_pixel(job, row, column, [&](int64_t pixel) {
          T* gradients = dx + in + pixel * job.channels;
#pragma GCC ivdep
          for (int64_t c = 0; c < channels; ++c)
            gradients[c] = static_cast<T>(static_cast<Acc>(gradients[c]) + share[c]);
        });
      });
    });
  }
};

// ---- candidates ----

enum class Pooling { maximum, maximum_gradient, average, average_gradient };

template <class Form, class T>
void run_pooling(Pooling pooling, const PoolingJob& job, const Run& run) {
  switch (pooling) {
    case Pooling::maximum: return Form::maximum(job, run.input<T>(0), run.output<T>(), run);
    case Pooling::maximum_gradient:
      return Form::maximum_gradient(job, run.input<T>(0), run.input<T>(1), run.input<T>(2), run.output<T>(),
                                    *run.threads);
    case Pooling::average: return Form::average(job, run.input<T>(0), run.output<T>(), *run.threads);
    case Pooling::average_gradient: return Form::average_gradient(job, run.input<T>(0), run.output<T>(), *run.threads);
  }
}

PoolingJob make_job(const GraphNode& node, bool gradient) {
  const Shape& input = gradient ? node.outputs[0].shape : node.inputs[0].spec().shape;
  const Shape& output = gradient ? node.inputs[0].spec().shape : node.outputs[0].shape;
  PoolingJob job{input[0], input[1], input[2], input[3], {}, {}};
  bool adaptive = !node.attributes.has("kernel");
  if (!adaptive) {
    job.kernel = node.attributes.ints("kernel")[1];
    job.stride = node.attributes.ints("stride")[1];
    job.padding = node.attributes.ints("padding")[1];
  }
  job.rows = adaptive ? adaptive_windows(input[2], output[2]) : sliding_windows(node.attributes, 0, input[2]);
  job.columns = adaptive ? adaptive_windows(input[3], output[3]) : sliding_windows(node.attributes, 1, input[3]);
  return job;
}

// Two candidates for a node whose operands are all images.
template <Pooling pooling>
std::vector<Candidate> pooling_candidates(const KernelRequest& request) {
  bool gradient = pooling == Pooling::maximum_gradient || pooling == Pooling::average_gradient;
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    PoolingJob job = make_job(request.node, gradient);
    std::vector<Candidate> candidates;
    candidates.push_back(
        make_candidate(request, "windows:nchw", [job](const Run& run) { run_pooling<Planes, T>(pooling, job, run); }));
    candidates.push_back(
        make_candidate(request, "windows:nhwc", [job](const Run& run) { run_pooling<Rows, T>(pooling, job, run); }));
    if (pooling == Pooling::maximum) candidates[0].workspace_bytes = Planes::maximum_bytes<T>(job);
    candidates[1].input_layouts.assign(request.node.inputs.size(), channels_last());
    candidates[1].output_layouts.assign(request.node.outputs.size(), channels_last());
    return candidates;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(pooling, {"max_pool2d", pooling_candidates<Pooling::maximum>},
                    {"max_pool2d_gradient", pooling_candidates<Pooling::maximum_gradient>},
                    {"avg_pool2d", pooling_candidates<Pooling::average>},
                    {"avg_pool2d_gradient", pooling_candidates<Pooling::average_gradient>},
                    {"adaptive_avg_pool2d", pooling_candidates<Pooling::average>},
                    {"adaptive_avg_pool2d_gradient", pooling_candidates<Pooling::average_gradient>})

}  // namespace bonfire::cpu
