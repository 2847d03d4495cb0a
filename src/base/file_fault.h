// What happens when a mapped file vanishes under a reader: another program cut it short, or its disk failed.
// The system then sends SIGBUS at the load that needs the lost page. There is no way back into the
// computation: the process says which file it was, takes its unfinished output away and ends with code 1.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

// Installs the handler, once, at the start of a program. A SIGBUS that no mapped file explains stays fatal.
void explain_file_faults();

// Files that the handler knows. remember_mapping returns a ticket for forget_mapping, -1 when the table is
// full (the file then goes unnamed).
int remember_mapping(const void* data, size_t bytes, const std::string& path);
void forget_mapping(int ticket);

// A flat folder that the handler removes, with the files in it; "" for none. One at a time.
void remove_on_file_fault(const std::string& folder);

}  // namespace tandem
