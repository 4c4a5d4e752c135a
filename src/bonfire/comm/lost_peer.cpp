#include "bonfire/comm/lost_peer.h"

#include <new>

#include "bonfire/base/error.h"

namespace bonfire::comm {

bool is_lost_peer(const std::exception& error) {
  if (dynamic_cast<const CommError*>(&error) != nullptr || dynamic_cast<const TimeoutError*>(&error) != nullptr)
    return true;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    return is_lost_peer(cause);
  } catch (...) {
  }
  return false;
}

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

}  // namespace bonfire::comm
