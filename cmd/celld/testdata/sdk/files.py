"""Files, directories and metrics through the Python SDKs."""

import io
import os
import stat

from common import check, main, refused, same
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)

ALL = bytes(range(256)) * 4000


def mode(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))


def written(files, d):
    files.create_directories([WriteEntry(path=f"{d}/a/b", mode=777)])
    same("a directory's mode", mode(f"{d}/a/b"), "0o777")
    files.write_file(f"{d}/a/text.txt", "één\ntwee\ndrie\n", mode=644)
    files.write_files([
        WriteEntry(path=f"{d}/a/bytes.bin", data=ALL, mode=600),
        WriteEntry(path=f"{d}/a/stream.bin", data=io.BytesIO(b"x" * 3_000_000)),
        WriteEntry(path=f"{d}/new/dir/leeg", data=""),
    ])
    same("modes", [mode(f"{d}/a/{n}") for n in ("text.txt", "bytes.bin", "stream.bin")], ["0o644", "0o600", "0o755"])
    same("a stream's size", os.path.getsize(f"{d}/a/stream.bin"), 3_000_000)
    odd = f"{d}/odd \"name\" \\ é漢 100%.txt"
    files.write_file(odd, "odd")
    same("an odd name", open(odd).read(), "odd")
    same("read by it", files.read_file(odd), "odd")
    files.delete_files([odd])
    check("deleted by it", not os.path.exists(odd))


def read(sdk, files, d):
    same("text", files.read_file(f"{d}/a/text.txt"), "één\ntwee\ndrie\n")
    same("lines", files.read_file(f"{d}/a/text.txt", offset=2, limit=1), "twee\n")
    same("a range", files.read_bytes(f"{d}/a/bytes.bin", range_header="bytes=254-257"), b"\xfe\xff\x00\x01")
    stream = files.read_bytes_stream(f"{d}/a/bytes.bin")
    if sdk.kind == "async":
        async def collect():
            return b"".join([chunk async for chunk in stream])

        stream = [sdk.loop.wait(collect())]
    same("all bytes", b"".join(stream) == ALL, True)
    refused("a missing file", 404, lambda: files.read_file(f"{d}/missing"))


def described(files, d):
    info = files.get_file_info([f"{d}/new/dir/leeg", f"{d}/a"])
    leeg, a = info[f"{d}/new/dir/leeg"], info[f"{d}/a"]
    same("an empty file", (leeg.size, leeg.entry_type, leeg.mode), (0, "file", 755))
    same("a directory", a.entry_type, "directory")
    check("times and owners", leeg.modified_at.tzinfo and leeg.created_at.year > 2000 and leeg.owner and leeg.group, leeg)
    refused("what isn't there", 404, lambda: files.get_file_info([f"{d}/missing"]))
    os.symlink("/nope", f"{d}/dang")
    listed = [(e.path, e.entry_type) for e in files.list_directory(DirectoryListEntry(path=d, depth=2))]
    check("a listing", (f"{d}/dang", "symlink") in listed and (f"{d}/a/b", "directory") in listed and len(listed) == 8, listed)
    same("a listing without the depth", len(files.list_directory(DirectoryListEntry(path=d))), 3)
    same("of an empty directory", files.list_directory(DirectoryListEntry(path=f"{d}/a/b")), [])
    same("a search", [e.path for e in files.search(SearchEntry(path=d, pattern="*.txt"))], [f"{d}/a/text.txt"])
    same("that finds nothing", files.search(SearchEntry(path=d, pattern="*.none")), [])


def changed(files, d):
    text = f"{d}/a/text.txt"
    files.replace_contents([ContentReplaceEntry(path=text, old_content="twee", new_content="two")])
    same("replaced", open(text).read(), "één\ntwo\ndrie\n")
    back = ContentReplaceEntry(path=text, old_content="two", new_content="twee")
    same("replaced and counted", [(r.path, r.replaced_count) for r in files.replace_contents_detailed([back])], [(text, 1)])
    files.set_permissions([SetPermissionEntry(path=text, mode=600)])
    same("permissions", mode(text), "0o600")
    refused("a mode that is none", 400, lambda: files.set_permissions([SetPermissionEntry(path=f"{d}/a", mode=888)]))
    files.move_files([MoveEntry(src=text, dest=f"{d}/moved/here.txt")])
    same("moved", os.listdir(f"{d}/moved"), ["here.txt"])
    refused("not onto what is there", 409, lambda: files.move_files([MoveEntry(src=f"{d}/moved/here.txt", dest=f"{d}/a")]))
    refused("directories aren't deleted as files", 400, lambda: files.delete_files([f"{d}/a"]))
    files.delete_files([f"{d}/dang", f"{d}/moved/here.txt"])
    files.delete_directories([f"{d}/a", f"{d}/new", f"{d}/moved"])
    same("all deleted", os.listdir(d), [])


def checks(sdk, folder):
    files = sdk.sandbox.files
    written(files, folder)
    read(sdk, files, folder)
    described(files, folder)
    changed(files, folder)
    if os.environ.get("METRICS"):
        metrics = sdk.sandbox.get_metrics()
        check("metrics", metrics.cpu_count > 0 and metrics.memory_total_in_mib > metrics.memory_used_in_mib > 0, metrics)


main(checks)
