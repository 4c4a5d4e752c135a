#include "bonfire/data/check.h"

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/cifar.h"
#include "bonfire/data/idx.h"
#include "bonfire/data/labels.h"
#include "bonfire/data/records.h"
#include "bonfire/data/text.h"
#include "bonfire/data/transforms.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

class Check {
 public:
  Check(const fs::path& folder, std::optional<int64_t> classes) : folder_(folder), classes_(classes) {
    report_.kind = require_kind(folder);
  }

  CheckReport run() {
    switch (report_.kind) {
      case SourceKind::mnist: check_mnist(); break;
      case SourceKind::cifar: check_cifar(); break;
      case SourceKind::text: check_text(); break;
      case SourceKind::records:
        for (Split split : {Split::train, Split::test})
          attempt([&] { check_samples(*load_records(folder_, split), split); });
        check_labels();
        break;
      case SourceKind::pictures:
        attempt([&] {
          ImageSource source = open_images(folder_);
          report_.passed_over = source.passed_over;
          check_samples(*source.train, Split::train);
          check_samples(*source.test, Split::test);
        });
        check_labels();
    }
    return std::move(report_);
  }

 private:
  // What it throws is a fault; false then.
  template <class Action>
  bool attempt(const Action& action) {
    try {
      action();
      return true;
    } catch (const DataError& error) {
      report_.faults.emplace_back(error.what());
      return false;
    }
  }

  int64_t& samples(Split split) { return split == Split::train ? report_.train_samples : report_.test_samples; }

  void check_samples(const Dataset& dataset, Split split) {
    samples(split) = dataset.size();
    for (int64_t i = 0; i < dataset.size(); ++i)
      attempt([&] {
        Sample sample = dataset.get(i);
        decode(sample);
      });
  }

  // Of what can be opened as a whole; what keeps it from that is among the faults already.
  void check_labels() {
    try {
      for (const std::string& fault : label_faults(open_images(folder_), classes_))
        report_.faults.push_back(fmt::format("[data] {}: {}", folder_.string(), fault));
    } catch (const DataError&) {
      BONFIRE_CHECK(!report_.faults.empty());
    }
  }

  // Each file alone, then how they fit together.
  void check_mnist() {
    for (Split split : {Split::train, Split::test})
      attempt([&] {
        bool whole = true;
        for (const fs::path& file : mnist_files(folder_, split)) whole = attempt([&] { read_idx(file); }) && whole;
        if (whole) samples(split) = load_mnist(folder_, split)->size();
      });
    check_labels();
  }

  void check_cifar() {
    for (Split split : {Split::train, Split::test})
      for (const fs::path& path : cifar_files(folder_, split))
        attempt([&] {
          base::MappedFile file(path);
          std::vector<uint8_t> images, labels;
          parse_cifar(file.bytes(), path.string(), cifar_classes(folder_), images, labels);
          samples(split) += static_cast<int64_t>(labels.size());
        });
    check_labels();
  }

  void check_text() {
    attempt([&] { WordPiece::load(folder_ / "vocab.txt"); });
    for (Split split : {Split::train, Split::test}) {
      fs::path path = text_file(folder_, split);
      attempt([&] {
        base::MappedFile file(path);
        for_each_line(file.bytes(), [&](std::string_view line) {
          ++samples(split);
          if (auto bad = unicode::first_bad_byte(line))
            report_.faults.push_back(
                fmt::format("[text] {}: line {} is not UTF-8 at its byte {}", path.string(), samples(split), *bad + 1));
        });
      });
    }
  }

  fs::path folder_;
  std::optional<int64_t> classes_;
  CheckReport report_;
};

}  // namespace

CheckReport check_data(const fs::path& folder, std::optional<int64_t> classes) { return Check(folder, classes).run(); }

}  // namespace bonfire::data
