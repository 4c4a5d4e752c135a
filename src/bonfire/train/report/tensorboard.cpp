// TensorBoard's event file: records of a length, its checksum, a protobuf message `Event` and its checksum. The few
// fields that scalars need are written by hand: wall_time = 1, step = 2, file_version = 3, summary = 5; in a summary
// value = 1, with tag = 1 and simple_value = 2.

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "bonfire/base/checksum.h"
#include "bonfire/base/log_file.h"
#include "bonfire/train/report/reporter.h"

namespace bonfire::train {

namespace {

// Rotated and offset as the record format wants it.
uint32_t masked_checksum(std::string_view bytes) {
  uint32_t sum = base::crc32c(std::as_bytes(std::span(bytes)));
  return (sum >> 15 | sum << 17) + 0xA282EAD8U;
}

template <class Number>
void put_little_endian(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);  // both architectures are little-endian
  out.append(bytes, sizeof number);
}

void put_varint(std::string& out, uint64_t number) {
  for (; number >= 128; number >>= 7) out += static_cast<char>((number & 127U) | 128U);
  out += static_cast<char>(number);
}

enum WireType : uint8_t { varint = 0, eight_bytes = 1, length_and_bytes = 2, four_bytes = 5 };
void put_field(std::string& out, uint32_t field, WireType type) { put_varint(out, field << 3 | type); }
void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_field(out, field, length_and_bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

class TensorBoardLog final : public Reporter {
 public:
  void begin(const RunBegins& run) override {
    auto seconds = static_cast<int64_t>(now());
    const std::filesystem::path path = run.folder / fmt::format("events.out.tfevents.{}.bonfire", seconds);
    log_ = base::LogFile(path, base::LogFile::Begin::empty);
    std::string event = new_event(0);
    put_bytes(event, 3, "brain.Event:2");
    write(event);
  }
  void step(const StepReport& report) override {
    scalar("train/loss", report.step, report.loss);
    for (const Score& one : report.scores) scalar("train/" + one.metric.name, report.step, one.value);
    scalar("train/lr", report.step, report.lr);
    scalar("train/samples_per_second", report.step, report.samples_per_second);
    scalar("train/data_wait", report.step, report.data_wait);
    scalar("train/communication_wait", report.step, report.communication_wait);
  }
  void evaluated(const EvaluationReport& report) override {
    const std::string on = name_of(report.on);
    scalar(on + "/loss", report.step, report.loss);
    for (const Score& one : report.scores) scalar(fmt::format("{}/{}", on, one.metric.name), report.step, one.value);
  }
  void note(const std::string&) override {}
  void end(const RunEnds&) override {}
  std::string take_warning() override { return log_.take_warning(); }
  std::string missing() const override { return log_.losses(); }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  static std::string new_event(int64_t step) {
    std::string event;
    put_field(event, 1, eight_bytes);
    put_little_endian(event, now());
    put_field(event, 2, varint);
    put_varint(event, static_cast<uint64_t>(step));
    return event;
  }

  void scalar(std::string_view tag, int64_t step, double value) {
    std::string item, summary, event = new_event(step);
    put_bytes(item, 1, tag);
    put_field(item, 2, four_bytes);
    put_little_endian(item, static_cast<float>(value));
    put_bytes(summary, 1, item);
    put_bytes(event, 5, summary);
    write(event);
  }

  void write(const std::string& event) {
    std::string record, length;
    put_little_endian(length, static_cast<uint64_t>(event.size()));
    record = length;
    put_little_endian(record, masked_checksum(length));
    record += event;
    put_little_endian(record, masked_checksum(event));
    log_.write(record);
  }

  base::LogFile log_;
};

}  // namespace

std::unique_ptr<Reporter> tensorboard_log() { return std::make_unique<TensorBoardLog>(); }

}  // namespace bonfire::train
