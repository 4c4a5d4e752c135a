#include "bonfire/nn/pooling.h"

#include "bonfire/nn/window_text.h"

namespace bonfire::nn {

namespace {

template <class Options>
std::string details_of(const Options& options) {
  return fmt::format("kernel_size={}, stride={}, padding={}, ceil_mode={}", window_text(options.kernel),
                     window_text(options.stride.rank() == 0 ? options.kernel : options.stride),
                     window_text(options.padding), options.ceil_mode ? "True" : "False");
}

}  // namespace

MaxPool2d::MaxPool2d(const MaxPool2dOptions& options) : Callable("MaxPool2d"), options_(options) {
  set_details(details_of(options));
}

AvgPool2d::AvgPool2d(const AvgPool2dOptions& options) : Callable("AvgPool2d"), options_(options) {
  set_details(details_of(options));
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(const Shape& output_size)
    : Callable("AdaptiveAvgPool2d"), output_size_(output_size) {
  set_details("output_size=" + window_text(output_size));
}

}  // namespace bonfire::nn
