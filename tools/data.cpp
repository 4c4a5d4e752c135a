#include "tools/command.h"

namespace bonfire::tools {

void add_data_list(Command data);
void add_data_check(Command data);
void add_data_pack(Command data);
void add_data_fetch(Command data);

void add_data(Command program) {
  Command data = program.add("data", "Lists, checks, packs and fetches data sets",
                             "bonfire data list data              what is in the folders of data/\n"
                             "bonfire data check FOLDER           reads all of it and names what is bad\n"
                             "bonfire data pack FOLDER PACKED     puts pictures into a few large files\n"
                             "bonfire data fetch mnist            downloads MNIST into data/mnist");
  add_data_list(data);
  add_data_check(data);
  add_data_pack(data);
  add_data_fetch(data);
}

}  // namespace bonfire::tools
