"""accelerate's launcher for notebooks, which forks the ranks. The libraries are imported there: torchao, if it is installed, asks the GPU for its properties when
transformers imports it, and CUDA doesn't survive a fork."""
import socket

from accelerate import notebook_launcher


def train():
    import engines
    engines.accelerate_ddp()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    notebook_launcher(train, (), num_processes=2, use_port=port)


if __name__ == "__main__":
    main()
