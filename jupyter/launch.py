"""Starts a Jupyter Server for celld.

Configuration comes as JSON on descriptor 0, so that the token is neither in the environment nor on the command line
nor in a file. A line on descriptor 3 says that the server listens.
"""

import json
import os
import sys
import tempfile


def main():
    given = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    ready = os.fdopen(3, "w")
    os.set_inheritable(3, False)

    # Only while the server sets itself up: kernels don't see these.
    os.environ.update(given["setup_env"])
    tempfile.tempdir = given["dir"]  # jupyter_core makes a directory for JUPYTER_NO_CONFIG, and leaves it behind

    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.sessions.sessionmanager import SessionManager
    from traitlets.config import Config

    class Sessions(SessionManager):
        """Adds what celld put aside for a kernel to its environment."""

        def get_kernel_env(self, path, name=None):
            env = super().get_kernel_env(path, name)
            context = path.rsplit("/", 1)[-1].removesuffix(".ipynb")
            env[given["marker_env"]] = given["marker"] + "." + context
            try:
                with open(os.path.join(given["dir"], "env", context), encoding="utf-8") as f:
                    env.update(json.load(f))
            except FileNotFoundError:
                pass
            return env

    class Server(ServerApp):
        """Leaves no file behind that names the token."""

        def write_server_info_file(self):
            pass

        def write_browser_open_files(self):
            pass

    config = Config(given["config"])
    config.ServerApp.session_manager_class = Sessions
    app = Server.instance(
        config=config, runtime_dir=given["dir"], data_dir=given["dir"], config_dir=given["dir"]
    )
    app.initialize(argv=[], find_extensions=False)
    app.kernel_spec_manager.kernel_dirs  # noqa: B018: computed now, from the variables that are about to go
    for name in given["setup_env"]:
        os.environ.pop(name, None)
    tempfile.tempdir = None

    def announce():
        ready.write("ready\n")
        ready.close()

    app.io_loop.add_callback(announce)  # queued behind the one that binds the socket
    app.start()


main()
