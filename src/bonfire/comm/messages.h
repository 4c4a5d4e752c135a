#pragma once
// send and receive as ops: collectives.h has the user's functions. Attributes: axis, peer (its place), tag, dtype (that
// was traced); of receive also shape, device_type and device_index.

#include <memory>

#include "bonfire/comm/axis_groups.h"
#include "bonfire/graph/op.h"

namespace bonfire::comm {

const Op& send_op();
const Op& receive_op();

// What a receive node does, for whoever receives outside of programs, too: one message at a time, into host memory,
// row-major. CommError where another value comes than the spec and the tag say.
class MessageReceiver {
 public:
  MessageReceiver(const Line& line, const TensorSpec& spec, int64_t tag);
  ~MessageReceiver();
  void receive(AxisGroups& groups, std::byte* values);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace bonfire::comm
