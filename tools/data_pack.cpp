#include <cinttypes>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/program_name.h"
#include "bonfire/data/pack.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct DataPackWanted {
  std::string source, target;
  int64_t shard_megabytes = 256;
  data::PackOptions options;
  bool json = false;
};

int run_data_pack(const DataPackWanted& wanted) {
  if (wanted.shard_megabytes < 1 || wanted.shard_megabytes > 1'000'000)
    throw_error<ConfigError>("[pack] --shard-size is {}, expected 1 to 1000000 megabytes", wanted.shard_megabytes);
  data::PackOptions options = wanted.options;
  options.shard_bytes = wanted.shard_megabytes * 1'000'000;
  data::PackReport report = data::pack(wanted.source, wanted.target, options);
  if (wanted.json) {
    auto part = [](const data::PackedPart& p) {
      return nlohmann::json{{"samples", p.samples}, {"shards", p.shards}, {"bytes", p.bytes}};
    };
    nlohmann::json json{{"folder", wanted.target},
                        {"train", part(report.train)},
                        {"test", part(report.test)},
                        {"passed_over", report.passed_over}};
    std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    if (!report.passed_over.empty()) std::printf("passed over: %s\n", report.passed_over.c_str());
    std::printf("packed %" PRId64 " samples to train on and %" PRId64 " to test into %" PRId64 " shards, %.1f MB\n",
                report.train.samples, report.test.samples, report.train.shards + report.test.shards,
                static_cast<double>(report.train.bytes + report.test.bytes) / 1e6);
    std::printf("try next    %s train data=%s\n", base::program_name().c_str(), wanted.target.c_str());
  }
  return 0;
}

}  // namespace

void add_data_pack(Command data) {
  Command command =
      data.add("pack", "Puts a data set of images into a few large files",
               "bonfire data pack photos packed                      the same pixels, quicker to read\n"
               "bonfire data pack photos packed --resize 256         with the short side 256 pixels at most\n"
               "bonfire data pack photos packed --shard-size 64      in files of about 64 MB");
  auto wanted = std::make_shared<DataPackWanted>();
  command.argument("source", wanted->source, "pictures, MNIST's or CIFAR's files, or records");
  command.argument("target", wanted->target, "the folder to make");
  command.option("--shard-size", wanted->shard_megabytes, "megabytes after which another shard begins (256)");
  command.option("--shards", wanted->options.shards, "so many shards instead");
  command.option("--resize", wanted->options.resize, "pixels of the short side at most");
  command.option("--keep-bytes", wanted->options.keep_bytes, "store JPEG files as they are, slower to read");
  command.option("--json", wanted->json, "print one JSON object");
  command.runs([wanted] { return run_data_pack(*wanted); });
}

}  // namespace bonfire::tools
