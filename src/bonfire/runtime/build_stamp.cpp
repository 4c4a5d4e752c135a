#include "bonfire/runtime/build_stamp.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>

namespace bonfire::runtime {

namespace {

// Notes are (name size, content size, type), name, content, each padded to four bytes.
std::string build_id(const char* notes, size_t bytes) {
  auto padded = [](size_t size) { return (size + 3) / 4 * 4; };
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes + at, sizeof head);
    const char* name = notes + at + sizeof head;
    const char* content = name + padded(head.n_namesz);
    if (head.n_type == NT_GNU_BUILD_ID && std::string_view(name, head.n_namesz) == std::string_view("GNU\0", 4)) {
      std::string text;
      for (size_t i = 0; i < head.n_descsz; ++i) text += fmt::format("{:02x}", static_cast<uint8_t>(content[i]));
      return text;
    }
    at += sizeof head + padded(head.n_namesz) + padded(head.n_descsz);
  }
  return {};
}

int add_object(dl_phdr_info* object, size_t /*bytes*/, void* stamp) {
  if (std::string_view(object->dlpi_name).find("libbonfire") == std::string_view::npos) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    auto* notes = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
    *static_cast<std::string*>(stamp) += build_id(notes, part.p_memsz);
  }
  return 0;
}

}  // namespace

std::string build_stamp() {
  std::string stamp;
  dl_iterate_phdr(add_object, &stamp);
  return stamp;
}

std::string processor_name() {
  // x86-64 gives a name, aarch64 two numbers.
  std::ifstream file("/proc/cpuinfo");
  std::string name;
  for (std::string line; std::getline(file, line) && !line.empty();)
    for (std::string_view field : {"model name", "CPU implementer", "CPU part"})
      if (line.starts_with(field)) name += line.substr(line.find(':') + 1);
  return name.empty() ? " unknown processor" : name;
}

}  // namespace bonfire::runtime
