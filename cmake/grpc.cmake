# gRPC and protobuf carry the store by which ranks find each other (src/bonfire/comm/store_*.cpp). Without them the
# library is built from store_without_grpc.cpp, whose functions say what is missing.
set(BONFIRE_HAVE_GRPC OFF)
set(grpc_packages "libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler")
if(BONFIRE_GRPC STREQUAL "OFF")
  bonfire_summary("gRPC" "left out: BONFIRE_GRPC is OFF")
else()
  find_package(Protobuf QUIET) # before gRPC, which asks for its targets
  find_package(gRPC CONFIG QUIET)
  # Programs of the machine that builds, also when it builds for another one.
  find_program(PROTOC protoc)
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin)
  if(Protobuf_FOUND AND gRPC_FOUND AND PROTOC AND GRPC_CPP_PLUGIN)
    set(BONFIRE_HAVE_GRPC ON)
    bonfire_summary("gRPC" "${gRPC_VERSION}")
  elseif(BONFIRE_GRPC STREQUAL "ON")
    message(FATAL_ERROR "BONFIRE_GRPC is ON, but gRPC or protobuf was not found (${grpc_packages})")
  else()
    bonfire_summary("gRPC" "left out: not found (${grpc_packages})")
  endif()
endif()

# Takes the files that need gRPC, or those that stand in for them, out of the list.
function(bonfire_split_grpc_sources variable)
  if(BONFIRE_HAVE_GRPC)
    list(FILTER ${variable} EXCLUDE REGEX "/comm/store_without_grpc")
  endif()
  list(FILTER ${variable} EXCLUDE REGEX "/comm/store_(server|client)")
  set(${variable} ${${variable}} PARENT_SCOPE)
endfunction()

# They are compiled apart: gRPC's flags and include folders are for them alone. Code includes what protoc makes as
# "bonfire/comm/store.grpc.pb.h".
function(bonfire_link_grpc_sources)
  if(NOT BONFIRE_HAVE_GRPC)
    return()
  endif()
  set(generated ${PROJECT_BINARY_DIR}/generated)
  set(proto ${PROJECT_SOURCE_DIR}/src/bonfire/comm/store.proto)
  set(stem ${generated}/bonfire/comm/store)
  file(MAKE_DIRECTORY ${generated})
  add_custom_command(
    OUTPUT ${stem}.pb.cc ${stem}.pb.h ${stem}.grpc.pb.cc ${stem}.grpc.pb.h
    COMMAND ${PROTOC} -I ${PROJECT_SOURCE_DIR}/src --cpp_out=${generated} --grpc_out=${generated}
            --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${proto}
    DEPENDS ${proto}
    VERBATIM)
  set_source_files_properties(${stem}.pb.cc ${stem}.grpc.pb.cc PROPERTIES COMPILE_OPTIONS -w) # not our code
  file(GLOB sources CONFIGURE_DEPENDS src/bonfire/comm/store_server*.cpp src/bonfire/comm/store_client*.cpp)
  add_library(bonfire_store OBJECT ${sources} ${stem}.pb.cc ${stem}.grpc.pb.cc)
  set_target_properties(bonfire_store PROPERTIES POSITION_INDEPENDENT_CODE ON)
  bonfire_include_folder(comm include_folder)
  target_include_directories(bonfire_store PRIVATE ${include_folder} ${generated})
  target_link_libraries(bonfire_store PRIVATE gRPC::grpc++ protobuf::libprotobuf fmt::fmt bonfire_warnings)
  target_compile_options(bonfire_store PRIVATE ${bonfire_seldom})
  if(BONFIRE_SANITIZE MATCHES "thread") # gRPC's templates wait in its library, where TSan cannot see it
    target_compile_options(bonfire_store PRIVATE -fno-sanitize=thread)
  endif()
  target_sources(bonfire PRIVATE $<TARGET_OBJECTS:bonfire_store>)
  target_link_libraries(bonfire PRIVATE $<LINK_ONLY:gRPC::grpc++> $<LINK_ONLY:protobuf::libprotobuf>)
endfunction()
