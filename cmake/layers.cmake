# Each folder of src/bonfire is an object library, and sees only itself and the folders above it in
# src/bonfire/layers.txt: its include folder has links to these alone, so that an include that breaks the layering does
# not compile.
set(layers_file ${PROJECT_SOURCE_DIR}/src/bonfire/layers.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${layers_file})
file(STRINGS ${layers_file} layer_lines REGEX "^[a-z]")
set(bonfire_layers "")
foreach(line IN LISTS layer_lines)
  string(REGEX REPLACE " .*" "" layer "${line}")
  list(APPEND bonfire_layers ${layer})
endforeach()

# The include folder of a layer; it is made anew at each configuration.
function(bonfire_include_folder layer result)
  string(REPLACE "/" "_" name ${layer})
  set(root ${PROJECT_BINARY_DIR}/layers/${name})
  set(is_above TRUE)
  foreach(one IN LISTS bonfire_layers)
    cmake_path(GET one PARENT_PATH parent)
    file(MAKE_DIRECTORY ${root}/bonfire/${parent})
    file(REMOVE ${root}/bonfire/${one}) # the link; the list may have changed
    if(is_above AND EXISTS ${PROJECT_SOURCE_DIR}/src/bonfire/${one})
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/bonfire/${one} ${root}/bonfire/${one} SYMBOLIC)
    endif()
    if(one STREQUAL layer)
      set(is_above FALSE)
    endif()
  endforeach()
  set(${result} ${root} PARENT_SCOPE)
endfunction()

# bonfire_add_objects(NAME LAYER SOURCE...): the object library bonfire_NAME, whose objects become part of the library.
function(bonfire_add_objects name layer)
  bonfire_include_folder(${layer} include_folder)
  add_library(bonfire_${name} OBJECT ${ARGN})
  set_target_properties(bonfire_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(bonfire_${name} PRIVATE ${include_folder})
  target_link_libraries(bonfire_${name} PRIVATE bonfire_outside bonfire_parts bonfire_warnings)
  # Read once instead of with every source. The debug preset builds without them and shows what a source forgot to
  # include. From version 13 on g++ cannot use them for sources with another -O: these read the headers themselves.
  set_target_properties(bonfire_${name} PROPERTIES PCH_WARN_INVALID OFF)
  if(NOT name STREQUAL "base")
    target_precompile_headers(bonfire_${name} REUSE_FROM bonfire_base)
  else()
    target_precompile_headers(
      bonfire_base
      PRIVATE
      <algorithm>
      <atomic>
      <chrono>
      <cmath>
      <condition_variable>
      <filesystem>
      <functional>
      <map>
      <memory>
      <mutex>
      <optional>
      <span>
      <string>
      <thread>
      <unordered_map>
      <vector>
      <fmt/format.h>)
  endif()
  target_sources(bonfire PRIVATE $<TARGET_OBJECTS:bonfire_${name}>)
  set_property(GLOBAL APPEND PROPERTY bonfire_object_libraries bonfire_${name})
endfunction()

# The sources of a list that belong to a layer, as they are or as files that include several of them.
function(bonfire_sources_of layer sources result)
  list(FILTER sources INCLUDE REGEX "/(src/bonfire|together)/${layer}/")
  set(${result} ${sources} PARENT_SCOPE)
endfunction()
