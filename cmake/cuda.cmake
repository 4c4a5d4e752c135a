# GPU support, src/bonfire/backend/cuda/: built where nvcc and cuDNN are found, else left out with a word in the summary.

# Sets BONFIRE_CUDA_MISSING to what is missing, in words, empty when nothing is.
macro(bonfire_find_cuda)
  set(BONFIRE_CUDA_MISSING "")
  if(NOT CMAKE_CUDA_COMPILER)
    file(GLOB toolkit_folders /usr/local/cuda/bin /usr/local/cuda-*/bin)
    find_program(BONFIRE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATH_SUFFIXES bin PATHS ${toolkit_folders})
    if(BONFIRE_NVCC)
      set(CMAKE_CUDA_COMPILER ${BONFIRE_NVCC})
    else()
      set(BONFIRE_CUDA_MISSING "nvcc was not found")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU architectures to compile for")
    endif()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25.1 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG -lineinfo")
    find_package(CUDAToolkit REQUIRED)
    find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include)
    find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUDNN_PATH
                 PATH_SUFFIXES lib lib64)
    if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
      set(BONFIRE_CUDA_MISSING "cuDNN was not found (set CUDNN_PATH to the folder that holds its include/ and lib/)")
    elseif(NOT TARGET bonfire_cudnn)
      add_library(bonfire_cudnn INTERFACE IMPORTED)
      target_include_directories(bonfire_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR})
      target_link_libraries(bonfire_cudnn INTERFACE ${CUDNN_LIBRARY})
    endif()
  endif()
endmacro()

set(BONFIRE_HAVE_CUDA OFF)
if(BONFIRE_CUDA STREQUAL "OFF")
  bonfire_summary("CUDA" "left out: BONFIRE_CUDA is OFF")
else()
  bonfire_find_cuda()
  if(NOT BONFIRE_CUDA_MISSING)
    set(BONFIRE_HAVE_CUDA ON)
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
    bonfire_summary("CUDA" "${CMAKE_CUDA_COMPILER_VERSION} for ${architectures}; cuDNN in ${CUDNN_LIBRARY}")
  elseif(BONFIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "BONFIRE_CUDA is ON, but ${BONFIRE_CUDA_MISSING}")
  else()
    bonfire_summary("CUDA" "left out: ${BONFIRE_CUDA_MISSING}")
  endif()
endif()

# Generated kernels contain the elementwise functions as source text: a source file with that text.
function(bonfire_embed_elementwise_functions result)
  set(functions ${PROJECT_SOURCE_DIR}/src/bonfire/ops/elementwise_functions.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${functions})
  file(READ ${functions} text)
  string(REPLACE "#pragma once\n" "" text "${text}")
  set(file ${PROJECT_BINARY_DIR}/cuda/elementwise_functions_source.cpp)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT
"namespace bonfire::cuda {
extern const char* const kElementwiseFunctionsSource;
const char* const kElementwiseFunctionsSource = R\"bonfire(@text@)bonfire\";
}  // namespace bonfire::cuda
")
  set(${result} ${file} PARENT_SCOPE)
endfunction()

# Compiling the backend takes minutes of several processors. The program is built with it where there is a GPU, where it
# was asked for, and where it has been built before: an old one would not fit a new library.
function(bonfire_choose_cuda_of_program)
  file(GLOB gpus /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/dxg)
  set(built ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${CMAKE_SHARED_LIBRARY_PREFIX}bonfire_cuda${CMAKE_SHARED_LIBRARY_SUFFIX})
  if(gpus OR BONFIRE_CUDA STREQUAL "ON" OR EXISTS ${built})
    set(BONFIRE_PROGRAM_HAS_CUDA ON PARENT_SCOPE)
  else()
    set(BONFIRE_PROGRAM_HAS_CUDA OFF PARENT_SCOPE)
    bonfire_summary("CUDA backend of the program" "left out: there is no GPU here (BONFIRE_CUDA=ON builds it all the same)")
  endif()
endfunction()

# The CUDA backend is a library beside the main one, which loads it when a GPU is first asked about
# (tensor/device.cpp): programs that stay on the CPU neither wait for CUDA's libraries nor need them.
function(bonfire_add_cuda_backend)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/bonfire/backend/cuda/*.cu
       ${PROJECT_SOURCE_DIR}/src/bonfire/backend/cuda/*.cpp)
  if(NOT BONFIRE_HAVE_CUDA OR NOT sources)
    set(BONFIRE_PROGRAM_HAS_CUDA OFF PARENT_SCOPE)
    return()
  endif()
  bonfire_embed_elementwise_functions(embedded)
  add_library(bonfire_cuda SHARED ${sources} ${embedded})
  # fmt 9 takes nvcc for a compiler without constexpr, and then does not compile as C++20.
  target_compile_definitions(bonfire_cuda PUBLIC $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_compile_options(bonfire_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  bonfire_include_folder(backend/cuda include_folder)
  target_include_directories(bonfire_cuda PRIVATE ${include_folder})
  target_link_libraries(
    bonfire_cuda
    PUBLIC $<LINK_ONLY:bonfire> fmt::fmt CUDA::cudart
    PRIVATE CUDA::cublasLt CUDA::nvrtc bonfire_cudnn bonfire_parts bonfire_warnings)
  install(TARGETS bonfire_cuda OPTIONAL)
  bonfire_choose_cuda_of_program()
  set(BONFIRE_PROGRAM_HAS_CUDA ${BONFIRE_PROGRAM_HAS_CUDA} PARENT_SCOPE)
endfunction()
