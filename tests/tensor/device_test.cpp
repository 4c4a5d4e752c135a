#include "bonfire/tensor/device.h"

#include <gtest/gtest.h>

#include <string>

#include "bonfire/base/error.h"

namespace bonfire::device_test {
namespace {

TEST(Device, PrintsTypeAndNumber) {
  EXPECT_EQ(to_string(Device{DeviceType::cpu, 1}), "cpu:1");
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 0}), "cuda:0");
}

TEST(ParseDevice, RejectsWhatIsNoDeviceNameAndSaysHowToWriteOne) {
  for (const char* name :
       {"", ":", "gpu", "CPU", "cpu:", "cpu:-1", "cpu:1x", "cpu:+1", "cpu: 1", "cpu:1:2", "cuda:99999999", "cpus"}) {
    try {
      parse_device(name);
      ADD_FAILURE() << "accepted '" << name << "'";
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                "[place] '" + std::string(name) + "' is not a device; write cpu, cpu:N, cuda or cuda:N");
    }
  }
}

TEST(ParseDevice, AMissingDeviceIsAnErrorThatNamesThoseThatAreThere) {
  try {
    parse_device("cuda:999");
    FAIL() << "nothing was thrown";
  } catch (const DeviceError& error) {
    std::string text = error.what();
    EXPECT_EQ(text.find("[place] cuda:999 is not there"), 0U) << text;
    EXPECT_NE(text.find("devices here: cpu:0"), std::string::npos) << text;
  }
}

TEST(DefaultDevice, IsTheFirstGpuOrElseTheFirstCpu) {
  bool has_gpu = devices().size() > 1;
  EXPECT_EQ(to_string(default_device()), has_gpu ? "cuda:0" : "cpu:0");
}

}  // namespace
}  // namespace bonfire::device_test
