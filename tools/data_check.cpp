#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/data/check.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct DataCheckWanted {
  std::string folder;
  int64_t classes = 0;  // 0: as such data has
  bool json = false;
};

int run_data_check(const DataCheckWanted& wanted) {
  if (wanted.classes < 0) throw_error<ConfigError>("[data] --classes is {}, expected at least 1", wanted.classes);
  data::CheckReport report =
      data::check_data(wanted.folder, wanted.classes > 0 ? std::optional(wanted.classes) : std::nullopt);
  if (wanted.json) {
    nlohmann::json json{{"folder", wanted.folder},       {"kind", data::name_of(report.kind)},
                        {"train", report.train_samples}, {"test", report.test_samples},
                        {"faults", report.faults},       {"passed_over", report.passed_over}};
    std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    if (!report.passed_over.empty()) std::printf("passed over: %s\n", report.passed_over.c_str());
    for (const std::string& fault : report.faults) std::printf("bad: %s\n", fault.c_str());
    const char* unit = report.kind == data::SourceKind::text ? "lines" : "samples";
    std::printf("%s: %s, %" PRId64 " %s to train on, %" PRId64 " to test: ", wanted.folder.c_str(),
                data::name_of(report.kind), report.train_samples, unit, report.test_samples);
    if (report.faults.empty())
      std::printf("all whole\n");
    else
      std::printf("%zu bad\n", report.faults.size());
  }
  return report.faults.empty() ? 0 : 1;
}

}  // namespace

void add_data_check(Command data) {
  Command command = data.add("check", "Reads every sample of a data set and names what is bad",
                             "bonfire data check FOLDER            exit code 0: all whole, 1: something is bad\n"
                             "bonfire data check FOLDER --classes 47   IDX files that are not MNIST's\n"
                             "bonfire data check FOLDER --json     {\"faults\": [...], ...}");
  auto wanted = std::make_shared<DataCheckWanted>();
  command.argument("folder", wanted->folder, "MNIST's or CIFAR's files, pictures, records or text");
  command.option("--classes", wanted->classes, "how many classes there are, where that is not what such data has");
  command.option("--json", wanted->json, "print one JSON object");
  command.runs([wanted] { return run_data_check(*wanted); });
}

}  // namespace bonfire::tools
