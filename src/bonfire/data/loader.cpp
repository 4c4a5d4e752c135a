#include "bonfire/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/data/stacked.h"

namespace bonfire::data {

namespace {

using Order = std::vector<uint32_t>;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct HostBatch {
  Stacked input, label;
  std::exception_ptr failure;
};

}  // namespace

Order shuffled(uint32_t count, uint64_t seed, uint64_t stream) {
  Order order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (uint32_t i = count; i > 1; --i) {
    RandomBlock block = philox(seed, stream, i);
    uint64_t bits = (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
    std::swap(order[i - 1], order[bits % i]);
  }
  return order;
}

// Batches are numbered through all epochs. Workers take the next number as long as it is less than `depth` ahead of
// the one that is wanted, and put what they made into slot number % depth.
struct DataLoader::State {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;

  std::mutex mutex;
  std::condition_variable made, wanted;
  std::vector<std::optional<HostBatch>> slots;
  int64_t next_wanted = 0, next_made = 0;
  uint64_t generation = 0;  // counts seeks: what was begun before one is thrown away
  bool stop = false;
  double waited = 0;  // seconds
  std::vector<std::thread> workers;

  std::mutex order_mutex;
  std::vector<std::pair<int64_t, std::shared_ptr<const Order>>> orders;  // of the last two epochs

  int64_t samples() const { return options.limit > 0 ? std::min(options.limit, dataset->size()) : dataset->size(); }
  int64_t batches() const {
    return options.drop_last ? samples() / options.batch_size
                             : (samples() + options.batch_size - 1) / options.batch_size;
  }

  std::shared_ptr<const Order> order_of(int64_t epoch) {
    if (!options.shuffle) return nullptr;
    std::lock_guard lock(order_mutex);
    for (const auto& [number, order] : orders)
      if (number == epoch) return order;
    auto order = std::make_shared<const Order>(
        shuffled(static_cast<uint32_t>(samples()), options.seed, static_cast<uint64_t>(epoch)));
    if (orders.size() == 2) orders.erase(orders.begin());
    orders.emplace_back(epoch, order);
    return order;
  }

  // Tells whoever wants to know.
  HostBatch make(int64_t number, int worker) {
    if (!options.on_batch) return make(number);
    double begin = seconds_now();
    HostBatch batch = make(number);
    options.on_batch({worker, {number / batches(), number % batches()}, begin, seconds_now() - begin});
    return batch;
  }

  HostBatch make(int64_t number) {
    HostBatch batch;
    try {
      int64_t epoch = number / batches(), begin = number % batches() * options.batch_size;
      int64_t count = std::min(options.batch_size, samples() - begin);
      std::shared_ptr<const Order> order = order_of(epoch);
      for (int64_t row = 0; row < count; ++row) {
        int64_t index = order ? (*order)[static_cast<size_t>(begin + row)] : begin + row;
        Sample sample = dataset->get(index);
        if (options.transform) options.transform(sample, {options.seed, epoch, index});
        if (row == 0) {
          batch.input = Stacked(sample.input, count);
          batch.label = Stacked(sample.label, count);
        }
        batch.input.put(row, sample.input, index);
        batch.label.put(row, sample.label, index);
      }
    } catch (...) {
      batch.failure = std::current_exception();
    }
    return batch;
  }

  void work(int worker) {
    std::unique_lock lock(mutex);
    while (true) {
      auto depth = static_cast<int64_t>(slots.size());
      wanted.wait(lock, [&] { return stop || next_made < next_wanted + depth; });
      if (stop) return;
      int64_t number = next_made++;
      uint64_t own = generation;
      lock.unlock();
      HostBatch batch = make(number, worker);
      lock.lock();
      if (own != generation) continue;
      slots[static_cast<size_t>(number % depth)] = std::move(batch);
      made.notify_one();
    }
  }

  HostBatch take() {
    if (workers.empty()) return make(next_wanted++, 0);
    std::unique_lock lock(mutex);
    std::optional<HostBatch>& slot = slots[static_cast<size_t>(next_wanted) % slots.size()];
    if (!slot) {
      double start = seconds_now();
      made.wait(lock, [&] { return slot.has_value(); });
      waited += seconds_now() - start;
    }
    HostBatch batch = std::move(*slot);
    slot.reset();
    ++next_wanted;
    wanted.notify_one();
    return batch;
  }
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : state_(std::make_unique<State>()) {
  auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) throw_error<ConfigError>("[loader] {} is {}, expected at least {}", name, value, least);
  };
  at_least("batch_size", options.batch_size, 1);
  at_least("limit", options.limit, 0);
  at_least("num_workers", options.num_workers, 0);
  state_->dataset = std::move(dataset);
  state_->options = options;
  if (state_->dataset->size() == 0) throw_error<DataError>("[loader] the data set is empty");
  if (state_->samples() > UINT32_MAX)
    throw_error<DataError>("[loader] {} samples, expected fewer than 2^32", state_->samples());
  if (state_->batches() == 0)
    throw_error<ConfigError>(
        "[loader] {} samples do not fill one batch of {}; use a smaller batch_size or keep the last batch",
        state_->samples(), options.batch_size);
  state_->slots.resize(2 * static_cast<size_t>(options.num_workers));
  for (int i = 0; i < options.num_workers; ++i)
    state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
}

DataLoader::~DataLoader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wanted.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int64_t DataLoader::samples() const { return state_->samples(); }
int64_t DataLoader::batches_per_epoch() const { return state_->batches(); }

Batch DataLoader::next() {
  HostBatch batch = state_->take();
  if (batch.failure) std::rethrow_exception(batch.failure);
  Device device = state_->options.device;
  return {batch.input.on(device), batch.label.on(device)};
}

LoaderPosition DataLoader::position() const {
  std::lock_guard lock(state_->mutex);
  return {state_->next_wanted / state_->batches(), state_->next_wanted % state_->batches()};
}

void DataLoader::seek(const LoaderPosition& position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch > batches_per_epoch())
    throw_error<ConfigError>("[loader] there is no batch {} in epoch {}; an epoch has {} batches", position.batch,
                             position.epoch, batches_per_epoch());
  std::lock_guard lock(state_->mutex);
  int64_t number = position.epoch * batches_per_epoch() + position.batch;
  if (number == state_->next_wanted) return;
  ++state_->generation;
  state_->next_wanted = state_->next_made = number;
  for (auto& slot : state_->slots) slot.reset();
  state_->wanted.notify_all();
}

double DataLoader::seconds_waited() const {
  std::lock_guard lock(state_->mutex);
  return state_->waited;
}

DataLoader::Epoch DataLoader::epoch(int64_t number) {
  seek({number, 0});
  return {*this, batches_per_epoch()};
}

}  // namespace bonfire::data
