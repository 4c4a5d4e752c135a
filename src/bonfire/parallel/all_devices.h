#pragma once
// What somebody who started a program plainly could have typed to use every GPU of the machine.

#include <string>
#include <vector>

#include "bonfire/tensor/device.h"

namespace bonfire::fleet {

// "this process uses cuda:0, one of 4 GPUs; to use all: bonfire launch --nproc_per_node 4 ./program --lr 0.1". Empty
// where it uses a CPU or there is one GPU. `words`: how the program was started.
std::string hint_to_use_all(Device used, const std::vector<Device>& there, const std::vector<std::string>& words);

std::vector<std::string> command_words();  // of this process, from /proc; empty where that is not there

// As a shell reads them: those with other than plain characters in quotes.
std::string shell_text(const std::vector<std::string>& words);

}  // namespace bonfire::fleet
