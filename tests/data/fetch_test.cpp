#include "bonfire/data/fetch.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/base/error.h"
#include "bonfire/base/md5.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::fetch_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::HttpAnswer;
using bonfire::testing::HttpServer;
using bonfire::testing::ScratchFolder;

std::string md5_of(const std::string& text) { return base::md5(std::as_bytes(std::span(text))); }

// Two files, one of them long enough for a cut.
class Fetch : public ::testing::Test {
 protected:
  Fetch() { setenv("no_proxy", "127.0.0.1", 1); }

  const std::string first_ = "first file", second_ = std::string(100'000, 's') + "end";
  const PublicSet set_{"toy",
                       "two files",
                       "toy",
                       {{"first", "http://example.invalid/first", md5_of(first_)},
                        {"second", "http://example.invalid/second", md5_of(second_)}}};
  ScratchFolder folder_;
  std::vector<std::string> said_;

  fs::path fetch(const std::string& from) {
    return fetch_set(set_, folder_.path(),
                     {.from = from, .say = [this](const std::string& line) { said_.push_back(line); }});
  }
  void expect_whole() const {
    EXPECT_EQ(folder_.get("toy/first"), first_);
    EXPECT_EQ(folder_.get("toy/second"), second_);
    EXPECT_FALSE(fs::exists(folder_ / "toy/second.part"));
  }
};

TEST_F(Fetch, BringsFilesWholeAndOnlyOnce) {
  HttpServer server({{"/first", {first_}}, {"/second", {second_}}});
  EXPECT_EQ(fetch(server.url()), folder_ / "toy");
  expect_whole();
  EXPECT_EQ(fetch(server.url() + "/"), folder_ / "toy");
  EXPECT_EQ(server.requests(), (std::vector<std::string>{"/first", "/second"}));
  EXPECT_EQ(said_.back(), "second  is there already");
}

TEST_F(Fetch, GoesOnWhereAServerCutsOff) {
  HttpServer server({{"/first", {first_}}, {"/second", {.body = second_, .cut_after = 40'000}}});
  fetch(server.url());
  expect_whole();
  EXPECT_EQ(server.requests(),
            (std::vector<std::string>{"/first", "/second", "/second from 40000", "/second from 80000"}));
}

TEST_F(Fetch, GoesOnWithWhatAnEarlierCallLeft) {
  HttpServer server({{"/first", {first_}}, {"/second", {second_}}});
  fs::create_directory(folder_ / "toy");
  folder_.put("toy/second.part", second_.substr(0, 77));
  fetch(server.url());
  expect_whole();
  EXPECT_EQ(server.requests().back(), "/second from 77");
}

TEST_F(Fetch, BeginsAnewWhereAServerCannotGoOn) {
  HttpServer server({{"/first", {first_}}, {"/second", {.body = second_, .ranges = false}}});
  fs::create_directory(folder_ / "toy");
  folder_.put("toy/second.part", second_.substr(0, 77));
  fetch(server.url());
  expect_whole();
}

TEST_F(Fetch, BeginsAnewWhereWhatIsThereIsOfAnotherFile) {
  for (size_t length : {77U, 200'000U}) {  // longer than the file: the server has nothing after it
    ScratchFolder other;
    HttpServer server({{"/first", {first_}}, {"/second", {second_}}});
    fs::create_directory(other / "toy");
    other.put("toy/second.part", std::string(length, 'x'));
    fetch_set(set_, other.path(), {.from = server.url()});
    EXPECT_EQ(other.get("toy/second"), second_);
  }
}

TEST_F(Fetch, AnotherChecksumIsAnErrorAndNothingIsKept) {
  HttpServer server({{"/first", {first_}}, {"/second", {"something else"}}});
  EXPECT_ERROR(fetch(server.url()), DataError,
               "/second: MD5 " + md5_of("something else") + ", expected " + md5_of(second_));
  EXPECT_EQ(folder_.get("toy/first"), first_);
  EXPECT_FALSE(fs::exists(folder_ / "toy/second"));
  EXPECT_FALSE(fs::exists(folder_ / "toy/second.part"));
  folder_.put("toy/second", "changed by hand");
  EXPECT_ERROR(fetch(server.url()), DataError, "remove it and try again");
}

TEST_F(Fetch, AMissingFileIsNamed) {
  HttpServer server({{"/first", {first_}}});
  EXPECT_ERROR(fetch(server.url()), CommError, "does not give " + server.url() + "/second (curl: (22)");
}

TEST_F(Fetch, SaysAtOnceWhenThereIsNoServer) {
  std::string url;
  { url = HttpServer({}).url(); }  // nobody listens there any more
  EXPECT_ERROR(fetch(url), CommError, "cannot reach 127.0.0.1:");
  EXPECT_ERROR(fetch(url), CommError,
               "is there a network? Otherwise fetch " + url + "/first elsewhere and put it into '");
  EXPECT_EQ(folder_.count(), 0U);
}

TEST_F(Fetch, SaysWhenCurlIsNotInstalled) {
  std::string path = std::getenv("PATH");
  setenv("PATH", folder_.path().c_str(), 1);
  EXPECT_ERROR(fetch("http://127.0.0.1:1"), ConfigError, "install it (apt-get install curl)");
  setenv("PATH", path.c_str(), 1);
}

TEST_F(Fetch, UnpacksAnArchive) {
  fs::create_directory(folder_ / "inside");
  folder_.put("inside/train.bin", "bytes");
  std::string command = "tar -C " + folder_.path().string() + " -czf " + (folder_ / "set.tar.gz").string() + " inside";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::string archive = folder_.get("set.tar.gz");
  HttpServer server({{"/set.tar.gz", {archive}}});
  PublicSet set{"toy", "an archive", "inside", {{"set.tar.gz", "", md5_of(archive)}}, true};
  ScratchFolder into;
  EXPECT_EQ(fetch_set(set, into.path(), {.from = server.url()}), into / "inside");
  EXPECT_EQ(into.get("inside/train.bin"), "bytes");
  EXPECT_EQ(into.count(), 2U);  // the archive too
  fetch_set(set, into.path(), {.from = server.url()});
  EXPECT_EQ(server.requests().size(), 1U);
  set.folder = "outside";
  EXPECT_ERROR(fetch_set(set, into.path(), {.from = server.url()}), DataError, "it has no outside");
  EXPECT_EQ(into.count(), 2U);
}

TEST_F(Fetch, NamesTheNearestSet) {
  EXPECT_ERROR(fetch_set("fashionmnist", folder_.path()), ConfigError, "the nearest is 'fashion_mnist'");
}

TEST_F(Fetch, PublishedSetsHaveChecksums) {
  for (const PublicSet& set : public_sets())
    for (const RemoteFile& file : set.files) {
      EXPECT_EQ(file.md5.size(), 32U);
      EXPECT_TRUE(file.url.ends_with("/" + file.name)) << file.url;
    }
}

}  // namespace
}  // namespace bonfire::data::fetch_test
