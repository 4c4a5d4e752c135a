// The `bonfire` command: tools/NAME.cpp adds the command NAME.

#include "tools/command.h"

namespace bonfire::tools {

void add_train(Command program);
void add_launch(Command program);
void add_eval(Command program);
void add_predict(Command program);
void add_export(Command program);
void add_inspect(Command program);
void add_data(Command program);
void add_bench(Command program);
void add_config(Command program);
void add_devices(Command program);
void add_version(Command program);
void add_completion(Command program);

}  // namespace bonfire::tools

int main(int argc, char** argv) {
  using namespace bonfire::tools;
  return run_program(
      argc, argv, "Bonfire trains neural networks in C++.",
      "bonfire train                                  a small CNN on the data set that is built in\n"
      "bonfire train lr=0.05 epochs=5                 with other settings\n"
      "bonfire train data=FOLDER model=resnet18_small MNIST's or CIFAR's files, pictures, record shards\n"
      "bonfire train configs/mnist.yaml resume=auto   settings from a file; go on where the last run stopped\n"
      "bonfire launch --nproc_per_node 4 ./program    a program of yours as four ranks\n"
      "bonfire eval runs/1                            the accuracy of a run's best weights\n"
      "bonfire predict runs/1 cat.png                 what it takes a picture for\n"
      "bonfire export runs/1 model.safetensors        its weights in one file, for PyTorch and others\n"
      "bonfire inspect runs/1                         what its newest checkpoint holds\n"
      "bonfire data check FOLDER                      reads a whole data set and names what is bad\n"
      "bonfire config                                 every setting, its default and what it means\n"
      "bonfire COMMAND --help                         more on a command, with examples (also: bonfire help COMMAND)",
      {add_train, add_eval, add_predict, add_export, add_launch, add_inspect, add_data, add_bench, add_config,
       add_devices, add_version, add_completion});
}
