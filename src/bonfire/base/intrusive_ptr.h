#pragma once
// Reference counting inside the object: one allocation, one word per handle. T derives from RefCounted<T>.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace bonfire::base {

template <class T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  void retain() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  // T may declare `static void destroy(T*)`, hiding this one, to be freed in its own way.
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      T::destroy(static_cast<T*>(const_cast<RefCounted*>(this)));
  }
  static void destroy(T* object) noexcept { delete object; }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<uint32_t> references_{0};
};

template <class T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  IntrusivePtr(std::nullptr_t) {}
  explicit IntrusivePtr(T* object) noexcept : object_(object) {
    if (object_ != nullptr) object_->retain();
  }
  IntrusivePtr(const IntrusivePtr& other) noexcept : IntrusivePtr(other.object_) {}
  IntrusivePtr(IntrusivePtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  IntrusivePtr& operator=(IntrusivePtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~IntrusivePtr() {
    if (object_ != nullptr) object_->release();
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const IntrusivePtr& a, const IntrusivePtr& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

template <class T, class... Args>
IntrusivePtr<T> make_intrusive(Args&&... args) {
  return IntrusivePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace bonfire::base
