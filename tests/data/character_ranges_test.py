"""The table of letters, numbers and spaces is what write_character_ranges.py writes."""
import pathlib
import subprocess
import sys
import unicodedata

folder = pathlib.Path(sys.argv[1])
committed = (folder / "character_ranges.cpp").read_text()
if f'"{unicodedata.unidata_version}"' not in committed:
    print(f"skipped: this Python has Unicode {unicodedata.unidata_version}, the table another version")
    sys.exit(77)
written = subprocess.run([sys.executable, folder / "write_character_ranges.py"], check=True, capture_output=True,
                         text=True).stdout
print("the table is up to date" if written == committed else "the table is not what the script writes: run it")
sys.exit(written != committed)
