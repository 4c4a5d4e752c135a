#pragma once
// send and receive as ops: collectives.h has the user's functions. Attributes: axis, peer (its place), tag, dtype (that
// was traced); of receive also shape, device_type and device_index.

#include "bonfire/graph/op.h"

namespace bonfire::comm {

const Op& send_op();
const Op& receive_op();

}  // namespace bonfire::comm
