#include "bonfire/data/loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/base/machine.h"
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
  Share share;
  std::vector<uint32_t> numbers;  // [share.own]
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

// Batches are numbered from the last seek on, through all epochs. Workers take the next number as long as it is less
// than `depth` ahead of the one that is wanted, and put what they made into slot number % depth.
struct DataLoader::State {
  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;

  std::mutex mutex;
  std::condition_variable made, wanted;
  std::vector<std::optional<HostBatch>> slots;
  LoaderPosition origin;  // of batch 0
  int64_t next_wanted = 0, next_made = 0;
  Share last;                     // of the batch that was taken last
  std::vector<uint32_t> numbers;  // of its samples here
  std::vector<int64_t> shares;    // [rank], of the batches that are made now; empty: all have as many
  uint64_t generation = 0;        // counts seeks: what was begun before one is thrown away
  bool stop = false;
  double waited = 0;  // seconds
  std::vector<std::thread> workers;

  std::mutex order_mutex;
  std::vector<std::pair<int64_t, std::shared_ptr<const Order>>> orders;  // of the last two epochs

  int64_t samples() const { return options.limit > 0 ? std::min(options.limit, dataset->size()) : dataset->size(); }
  int64_t global_batch() const { return options.batch_size * options.sampler.world; }
  int64_t batches_of(int64_t count) const {  // samples
    return options.drop_last ? count / global_batch() : (count + global_batch() - 1) / global_batch();
  }
  int64_t batches() const { return batches_of(samples()); }  // of an epoch

  // The first epoch may begin anywhere, at a multiple of another batch size too.
  LoaderPosition position_of(int64_t number) const {
    int64_t first = batches_of(samples() - origin.samples);
    if (number < first) return {origin.epoch, origin.samples + number * global_batch()};
    number -= first;
    return {origin.epoch + 1 + number / batches(), number % batches() * global_batch()};
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

  // Workers forget what they have made, and go on from this position.
  void restart_at(const LoaderPosition& position) {
    ++generation;
    origin = position;
    next_wanted = next_made = 0;
    for (auto& slot : slots) slot.reset();
    wanted.notify_all();
  }

  // Tells whoever wants to know.
  HostBatch make(const LoaderPosition& at, std::span<const int64_t> cut, int worker) {
    if (!options.on_batch) return make(at, cut);
    double begin = seconds_now();
    HostBatch batch = make(at, cut);
    options.on_batch({worker, at, begin, seconds_now() - begin});
    return batch;
  }

  HostBatch make(const LoaderPosition& at, std::span<const int64_t> cut) {
    HostBatch batch;
    try {
      int64_t count = std::min(global_batch(), samples() - at.samples);
      batch.share = options.sampler.share(count, cut);
      // As many stand-ins as a batch has: the step is compiled for that.
      int64_t rows = batch.share.own > 0 ? batch.share.own : options.sampler.share(global_batch(), cut).own;
      std::shared_ptr<const Order> order = order_of(at.epoch);
      for (int64_t row = 0; row < rows; ++row) {
        int64_t place = at.samples + (batch.share.own > 0 ? batch.share.place(row) : 0);
        place %= samples();  // a padded batch goes on with the epoch's first
        int64_t index = order ? (*order)[static_cast<size_t>(place)] : place;
        if (batch.share.own > 0) batch.numbers.push_back(static_cast<uint32_t>(index));
        Sample sample = dataset->get(index);
        if (options.transform) options.transform(sample, {options.seed, at.epoch, index});
        if (row == 0) {
          batch.input = Stacked(sample.input, rows);
          batch.label = Stacked(sample.label, rows);
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
      LoaderPosition at = position_of(number);
      uint64_t own = generation;
      const std::vector<int64_t> cut = shares;
      lock.unlock();
      HostBatch batch = make(at, cut, worker);
      lock.lock();
      if (own != generation) continue;
      slots[static_cast<size_t>(number % depth)] = std::move(batch);
      made.notify_one();
    }
  }

  void end_workers() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wanted.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  HostBatch take() {
    if (workers.empty()) {
      const double start = seconds_now();
      HostBatch batch = make(position_of(next_wanted++), shares, 0);
      waited += seconds_now() - start;
      return batch;
    }
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
  if (options.num_workers > base::most_tasks())
    throw_error<ConfigError>("[loader] num_workers is {}, expected at most {} on this machine", options.num_workers,
                             base::most_tasks());
  options.sampler.check();
  state_->dataset = std::move(dataset);
  state_->options = options;
  if (state_->dataset->size() == 0) throw_error<DataError>("[loader] the data set is empty");
  if (state_->samples() > UINT32_MAX)
    throw_error<DataError>("[loader] {} samples, expected fewer than 2^32", state_->samples());
  if (state_->batches() == 0)
    throw_error<ConfigError>(
        "[loader] {} samples do not fill one batch of {}{}; use a smaller batch_size or keep the last batch",
        state_->samples(), options.batch_size,
        options.sampler.world > 1 ? fmt::format(" for each of {} ranks", options.sampler.world) : "");
  state_->slots.resize(2 * static_cast<size_t>(options.num_workers));
  try {
    for (int i = 0; i < options.num_workers; ++i)
      state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
  } catch (const std::system_error& error) {
    const size_t made = state_->workers.size();
    state_->end_workers();
    throw_error<ConfigError>("[loader] num_workers is {}, and the system gives {} threads: {}", options.num_workers,
                             made, error.what());
  }
}

DataLoader::~DataLoader() { state_->end_workers(); }

int64_t DataLoader::samples() const { return state_->samples(); }
int64_t DataLoader::batches_per_epoch() const { return state_->batches(); }

int64_t DataLoader::batches_until(int64_t epoch) const {
  LoaderPosition at = position();
  if (at.epoch >= epoch) return 0;
  return state_->batches_of(samples() - at.samples) + (epoch - at.epoch - 1) * state_->batches();
}

Batch DataLoader::next() {
  HostBatch batch = state_->take();
  state_->last = batch.share;
  state_->numbers = std::move(batch.numbers);
  if (batch.failure) std::rethrow_exception(batch.failure);
  Device device = state_->options.device;
  return {batch.input.on(device), batch.label.on(device)};
}

Share DataLoader::share() const { return state_->last; }
std::span<const uint32_t> DataLoader::numbers() const { return state_->numbers; }

void DataLoader::set_shares(const std::vector<int64_t>& shares) {
  const DistributedSampler& sampler = state_->options.sampler;
  sampler.check(shares);
  if (int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0}); sum != state_->global_batch())
    throw_error<ConfigError>("[loader] the shares of {} ranks add up to {}, expected {}: {} for each rank",
                             sampler.world, sum, state_->global_batch(), state_->options.batch_size);
  std::lock_guard lock(state_->mutex);
  state_->shares = shares;
  state_->restart_at(state_->position_of(state_->next_wanted));
}

LoaderPosition DataLoader::position() const {
  std::lock_guard lock(state_->mutex);
  return state_->position_of(state_->next_wanted);
}

void DataLoader::seek(const LoaderPosition& position) {
  if (position.epoch < 0 || position.samples < 0 || position.samples > samples())
    throw_error<ConfigError>("[loader] there is no sample {} in epoch {}; an epoch has {} samples", position.samples,
                             position.epoch, samples());
  std::lock_guard lock(state_->mutex);
  if (position == state_->position_of(state_->next_wanted)) return;
  state_->restart_at(position);
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
