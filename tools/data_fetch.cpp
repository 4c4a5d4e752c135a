#include <unistd.h>

#include <cstdio>
#include <memory>

#include "bonfire/data/fetch.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct DataFetchWanted {
  std::string name, into = "data";
  data::FetchOptions options;
};

int run_data_fetch(const DataFetchWanted& wanted) {
  data::FetchOptions options = wanted.options;
  options.show_progress = isatty(STDERR_FILENO) == 1;
  options.say = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  std::filesystem::path folder = data::fetch_set(wanted.name, wanted.into, options);
  return std::printf("try next    bonfire train data=%s\n", folder.c_str()) < 0 ? 1 : 0;
}

}  // namespace

void add_data_fetch(Command data) {
  std::string examples =
      "bonfire data fetch mnist                 into data/mnist; again to go on where it was cut off\n"
      "bonfire data fetch cifar10 --into /big   into /big/cifar-10-batches-bin\n"
      "Sets:";
  for (const data::PublicSet& set : data::public_sets()) examples += "\n  " + set.name + ": " + set.title;
  Command command = data.add("fetch", "Downloads a public data set", examples);
  auto wanted = std::make_shared<DataFetchWanted>();
  command.argument("set", wanted->name, "mnist, fashion_mnist, cifar10 or cifar100");
  command.option("--into", wanted->into, "the folder that gets a folder for it (data)");
  command.option("--from", wanted->options.from, "another place that has its files: http://host/folder");
  command.runs([wanted] { return run_data_fetch(*wanted); });
}

}  // namespace bonfire::tools
