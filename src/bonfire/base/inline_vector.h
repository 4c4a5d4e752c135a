#pragma once
// A vector whose first N elements need no allocation: nodes have few inputs, and tracing must stay under a microsecond
// a node.

#include <cstddef>
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
    reserve(items.size());
    for (const T& item : items) push_back(item);
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
      reserve(capacity_ * 2);
      std::construct_at(data() + size_, std::move(item));
    } else {
      std::construct_at(data() + size_, std::forward<Args>(args)...);
    }
    return data()[size_++];
  }
  void push_back(T item) { emplace_back(std::move(item)); }
  void pop_back() { std::destroy_at(data() + --size_); }
  void clear() noexcept {
    std::destroy_n(data(), size_);
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
    std::uninitialized_move_n(data(), size_, grown);
    std::destroy_n(data(), size_);
    release();
    heap_ = grown;
    capacity_ = count;
  }

  T* data() { return heap_ != nullptr ? heap_ : reinterpret_cast<T*>(inline_); }
  const T* data() const { return heap_ != nullptr ? heap_ : reinterpret_cast<const T*>(inline_); }
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
  void release() noexcept {
    if (heap_ != nullptr) std::allocator<T>().deallocate(heap_, capacity_);
    heap_ = nullptr;
    capacity_ = N;
  }
  void take(InlineVector& other) noexcept {
    if (other.heap_ != nullptr) {
      heap_ = std::exchange(other.heap_, nullptr);
      capacity_ = std::exchange(other.capacity_, N);
    } else {
      std::uninitialized_move_n(other.data(), other.size_, data());
      std::destroy_n(other.data(), other.size_);
    }
    size_ = std::exchange(other.size_, 0);
  }

  size_t size_ = 0;
  size_t capacity_ = N;
  T* heap_ = nullptr;
  alignas(T) std::byte inline_[N * sizeof(T)];  // NOLINT(bugprone-sizeof-expression): T may be a pointer
};

}  // namespace bonfire::base
