#include "bonfire/nn/pooling.h"

#include "bonfire/nn/python_text.h"

namespace bonfire::nn {

namespace {

template <class Options>
std::string details_of(const Options& options) {
  return fmt::format("kernel_size={}, stride={}, padding={}", window_as_given(options.kernel),
                     window_as_given(options.stride.rank() == 0 ? options.kernel : options.stride),
                     window_as_given(options.padding));
}

}  // namespace

MaxPool2d::MaxPool2d(const MaxPool2dOptions& options) : Callable("MaxPool2d"), options_(options) {
  set_details(details_of(options) + ", dilation=1, ceil_mode=" + python_text(options.ceil_mode));
}

AvgPool2d::AvgPool2d(const AvgPool2dOptions& options) : Callable("AvgPool2d"), options_(options) {
  set_details(details_of(options));
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Shape& output_size)
    : Callable("AdaptiveAvgPool2d"), output_size_(output_size) {
  set_details("output_size=" + window_as_given(output_size));
}

}  // namespace bonfire::nn
