# cmake -D SOURCE_DIR=... -D OUT=commit.cc -P Commit.cmake: writes the git commit of SOURCE_DIR, or "unknown".
execute_process(
  COMMAND git -C ${SOURCE_DIR} describe --always --abbrev=12 --dirty --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
set(text "namespace tandem {\nextern const char* const kCommit;\nconst char* const kCommit = \"${commit}\";\n}\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUT} "${text}")
endif()
