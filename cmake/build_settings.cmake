# How everything is compiled and linked: language, build types, sanitizers, warnings, compiler cache, linker.
include(CheckLinkerFlag)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
# The installed program and a library in the folder beside it find each other wherever the prefix is moved to.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # CUDA libraries lie outside the linker's usual folders

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or Sanitize" FORCE)
endif()
# Nothing here reads errno or floating-point traps; -ffast-math would break NaN and the order of sums.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -g1 -fno-math-errno -fno-trapping-math")
# Lines and functions, as reports name them; and char as it is on aarch64.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer -funsigned-char")
if(BONFIRE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${BONFIRE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  if(BONFIRE_SANITIZE MATCHES "address") # reports what these look for as well, and without them compiling is quicker
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,object-size,pointer-overflow>)
    # Alignment is looked at only where bytes of files and messages become values: it makes compiling a third longer.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=alignment>)
    set(bonfire_look_at_alignment -fsanitize=alignment)
    # What checks an access is called: inline it takes a third longer to compile, and runs sooner, as kernels need it.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=asan-instrumentation-with-call-threshold=0>)
      set(bonfire_check_inline --param=asan-instrumentation-with-call-threshold=7000)
    endif()
  endif()
  add_link_options(-fsanitize=${BONFIRE_SANITIZE})
  bonfire_summary("sanitizers" "${BONFIRE_SANITIZE}")
endif()

# Warnings are errors for our own targets; code that includes our headers chooses its own.
set(warnings -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms on std::string and small arrays.
  list(APPEND warnings -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64") # notes on how g++ 9 passed arguments
    list(APPEND warnings -Wno-psabi)
  endif()
  # register_op returns what it keeps, not its argument, which g++ cannot see.
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND warnings -Wno-dangling-reference)
  endif()
  if(BONFIRE_SANITIZE) # instrumented code hides initialisations from g++'s analysis
    list(APPEND warnings -Wno-maybe-uninitialized)
  endif()
endif()
add_library(bonfire_warnings INTERFACE)
target_compile_options(bonfire_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
                                                  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>)

find_program(CCACHE ccache)
if(CCACHE)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      # Without these words it leaves sources with precompiled headers alone.
      set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
    endif()
  endforeach()
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

foreach(linker mold lld)
  if(NOT DEFINED CMAKE_LINKER_TYPE)
    check_linker_flag(CXX -fuse-ld=${linker} BONFIRE_LINKS_WITH_${linker})
    if(BONFIRE_LINKS_WITH_${linker})
      add_link_options(-fuse-ld=${linker})
      break()
    endif()
  endif()
endforeach()

# Of a list of sources those that match a pattern are compiled with further options, but for those that have options of
# their own. Where BONFIRE_COMPILE_TOGETHER is ON those of a layer are compiled several at a time, so that their headers
# and templates are compiled once: a build from nothing takes less time, and one after a change more. Names in unnamed
# namespaces must therefore differ among the files of one namespace.
function(bonfire_compile_alike sources_variable name pattern)
  set(options ${ARGN})
  set(others "")
  set(alike "")
  foreach(source IN LISTS ${sources_variable})
    get_property(own_options SOURCE ${source} PROPERTY COMPILE_OPTIONS)
    get_property(own_definitions SOURCE ${source} PROPERTY COMPILE_DEFINITIONS)
    if(source MATCHES "${pattern}" AND NOT own_options AND NOT own_definitions)
      list(APPEND alike ${source})
    else()
      list(APPEND others ${source})
    endif()
  endforeach()
  if(BONFIRE_COMPILE_TOGETHER AND alike)
    set(left ${alike})
    set(alike "")
    foreach(layer IN LISTS bonfire_layers ITEMS "")
      set(own ${left})
      if(layer)
        list(FILTER own INCLUDE REGEX "/src/bonfire/${layer}/")
        list(FILTER left EXCLUDE REGEX "/src/bonfire/${layer}/")
      endif()
      if(own)
        bonfire_include_in_few_files(own ${layer}/${name})
        list(APPEND alike ${own})
      endif()
    endforeach()
    list(APPEND options $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  set_property(SOURCE ${alike} APPEND PROPERTY COMPILE_OPTIONS ${options})
  set(${sources_variable} ${others} ${alike} PARENT_SCOPE)
endfunction()

# Replaces the sources of a list by files that include up to twelve of them each, by paths that are the same in every
# clone, so that a compiler cache serves all of them.
function(bonfire_include_in_few_files sources_variable name)
  set(files "")
  set(text "")
  set(included 0)
  list(LENGTH ${sources_variable} count)
  math(EXPR each "(${count} + (${count} + 11) / 12 - 1) / ((${count} + 11) / 12)") # as many in one file as in another
  foreach(source IN LISTS ${sources_variable})
    get_filename_component(folder ${PROJECT_BINARY_DIR}/together/${name} DIRECTORY)
    file(RELATIVE_PATH path ${folder} ${source})
    string(APPEND text "#include \"${path}\"  // NOLINT(bugprone-suspicious-include)\n")
    math(EXPR included "${included} + 1")
    math(EXPR in_file "${included} % ${each}")
    if(in_file EQUAL 0 OR included EQUAL count)
      set(file ${PROJECT_BINARY_DIR}/together/${name}_${included}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}")
      list(APPEND files ${file})
      set(text "")
    endif()
  endforeach()
  set(${sources_variable} ${files} PARENT_SCOPE)
endfunction()
