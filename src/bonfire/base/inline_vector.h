#pragma once
// A vector whose first N elements need no allocation: nodes have few inputs, and tracing must stay under a microsecond
// a node.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace bonfire::base {

template <class T, size_t N>
class InlineVector {
  static_assert(N > 0);

 public:
  InlineVector() = default;
  InlineVector(std::initializer_list<T> items) : InlineVector(std::span<const T>(items.begin(), items.size())) {}
  explicit InlineVector(std::span<const T> items)
      : InlineVector() {  // delegates, so that a throwing copy frees the rest
    append(items);
  }
  InlineVector(const InlineVector& other) : InlineVector(std::span<const T>(other.data(), other.size())) {}
  InlineVector(InlineVector&& other) noexcept { take(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) *this = InlineVector(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this == &other) return *this;
    clear();
    release();
    take(other);
    return *this;
  }
  ~InlineVector() {
    clear();
    release();
  }

  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) {
      T item(std::forward<Args>(args)...);  // first: the arguments may name an element that growing moves
      reserve(2 * size_t{capacity_});
      std::construct_at(data_ + size_, std::move(item));
    } else {
      std::construct_at(data_ + size_, std::forward<Args>(args)...);
    }
    return data_[size_++];
  }
  void push_back(T item) { emplace_back(std::move(item)); }
  void append(std::span<const T> items) {  // which are not its own
    if (size_ + items.size() > capacity_) reserve(std::max<size_t>(size_ + items.size(), 2 * size_t{capacity_}));
    std::uninitialized_copy_n(items.data(), items.size(), data_ + size_);
    size_ += static_cast<uint32_t>(items.size());
  }
  void pop_back() { std::destroy_at(data_ + --size_); }
  void clear() noexcept {
    std::destroy_n(data_, size_);
    size_ = 0;
  }
  void resize(size_t count) {
    reserve(count);
    while (size_ > count) pop_back();
    while (size_ < count) emplace_back();
  }
  void reserve(size_t count) {
    static_assert(std::is_nothrow_move_constructible_v<T>, "growing must not fail halfway");
    if (count <= capacity_) return;
    T* grown = std::allocator<T>().allocate(count);
    std::uninitialized_move_n(data_, size_, grown);
    std::destroy_n(data_, size_);
    release();
    data_ = grown;
    capacity_ = static_cast<uint32_t>(count);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  operator std::span<const T>() const { return {data(), size_}; }

  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    if (a.size_ != b.size_) return false;
    for (size_t i = 0; i < a.size_; ++i)
      if (!(a[i] == b[i])) return false;
    return true;
  }

 private:
  T* inside() noexcept { return reinterpret_cast<T*>(inline_); }
  void release() noexcept {
    if (data_ != inside()) std::allocator<T>().deallocate(data_, capacity_);
    data_ = inside();
    capacity_ = N;
  }
  void take(InlineVector& other) noexcept {  // of one whose own elements are gone
    if (other.data_ != other.inside()) {
      data_ = std::exchange(other.data_, other.inside());
      capacity_ = std::exchange(other.capacity_, N);
    } else {
      std::uninitialized_move_n(other.data_, other.size_, data_);
      std::destroy_n(other.data_, other.size_);
    }
    size_ = std::exchange(other.size_, 0);
  }

  T* data_ = inside();  // inline_, or memory of its own
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  alignas(T) std::byte inline_[N * sizeof(T)];  // NOLINT(bugprone-sizeof-expression): T may be a pointer
};

}  // namespace bonfire::base
