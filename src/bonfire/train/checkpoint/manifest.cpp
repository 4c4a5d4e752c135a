#include "bonfire/train/checkpoint/manifest.h"

#include <zlib.h>

#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/private_file.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

uint32_t checksum_of(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Shape shape_in(const json& object, const char* key) {
  const auto extents = object.at(key).get<std::vector<int64_t>>();
  return Shape(extents);
}

json json_of(const Slice& slice) {
  json object{{"whole", slice.whole().extents()}};
  if (slice.is_range()) {
    object["begin"] = slice.begin();
    object["end"] = slice.end();
    if (!slice.order().row_major()) object["order"] = slice.order().order.extents();
    return object;
  }
  object["offset"] = slice.offset().extents();
  object["extent"] = slice.extent().extents();
  if (slice.blocks() > 1) {
    object["packed"] = slice.packed();
    object["blocks"] = slice.blocks();
  }
  return object;
}

Slice slice_in(const json& object) {
  const Shape whole = shape_in(object, "whole");
  if (!object.contains("begin"))
    return Slice::box(whole, shape_in(object, "offset"), shape_in(object, "extent"), object.value("packed", 0),
                      object.value("blocks", int64_t{1}));
  const Layout order{.order = object.contains("order") ? shape_in(object, "order") : Shape()};
  return Slice::range(whole, object.at("begin"), object.at("end"), order);
}

json json_of(const std::map<std::string, ManifestFile>& files) {
  json object = json::object();
  for (const auto& [name, file] : files) {
    json& one = object[name] = {{"bytes", file.bytes}, {"crc32", file.crc32}};
    for (const auto& [tensor, slice] : file.slices) one["slices"][tensor] = json_of(slice);
  }
  return object;
}

std::map<std::string, ManifestFile> files_in(const json& object) {
  std::map<std::string, ManifestFile> files;
  for (const auto& [name, said] : object.items()) {
    ManifestFile& file = files[name];
    file.bytes = said.at("bytes");
    file.crc32 = said.at("crc32");
    if (!said.contains("slices")) continue;
    for (const auto& [tensor, slice] : said["slices"].items()) file.slices.emplace(tensor, slice_in(slice));
  }
  return files;
}

}  // namespace

fs::path manifest_file(const fs::path& checkpoint) { return checkpoint / "manifest.json"; }

Manifest read_manifest(const fs::path& checkpoint) {
  const std::vector<std::byte> bytes = base::read_file(manifest_file(checkpoint));
  try {
    const json object = json::parse(bytes);
    Manifest manifest{.format = object.at("format")};
    if (manifest.format > Manifest::kNewest) return manifest;
    manifest.step = object.at("step");
    manifest.files = files_in(object.at("files"));
    return manifest;
  } catch (const json::exception& error) {
    throw_error<DataError>("manifest.json is damaged: {}", error.what());
  } catch (const ShapeError& error) {
    throw_error<DataError>("manifest.json is damaged: {}", error.what());
  }
}

void write_manifest(const fs::path& checkpoint, const Manifest& manifest) {
  const json object{{"format", manifest.format}, {"step", manifest.step}, {"files", json_of(manifest.files)}};
  const std::string text = object.dump(1) + "\n";
  const std::span<const std::byte> chunks[] = {std::as_bytes(std::span<const char>(text))};
  base::write_private_file(manifest_file(checkpoint), chunks);
}

ManifestFile measure_file(const fs::path& file) {
  const base::MappedFile mapped(file);
  return {.bytes = mapped.bytes().size(), .crc32 = checksum_of(mapped.bytes())};
}

std::string difference(const fs::path& file, const ManifestFile& expected) {
  const ManifestFile found = measure_file(file);
  const std::string name = file.filename();
  if (found.bytes != expected.bytes)
    return fmt::format("{} has {} bytes, expected {}", name, found.bytes, expected.bytes);
  return found.crc32 == expected.crc32 ? "" : name + " is damaged (wrong checksum)";
}

std::string files_to_json(const std::map<std::string, ManifestFile>& files) { return json_of(files).dump(); }

std::map<std::string, ManifestFile> files_from_json(const std::string& text) { return files_in(json::parse(text)); }

}  // namespace bonfire::train
