#pragma once
// saying_where: what is lost between ranks, or on a device, while a pipeline works says where in its schedule that was,
// and where along the pipeline the rank is that it names.

#include <functional>
#include <string>

namespace bonfire::pipeline {

// CommError, TimeoutError and DeviceError that come out of the body begin with the place, unless they name one already:
// "[pipeline] stage 0 of 2, item 7 of its schedule (B 1 in slot 0)". It is asked for where there is one.
void saying_where(const std::function<std::string()>& place, const std::function<void()>& body);

}  // namespace bonfire::pipeline
