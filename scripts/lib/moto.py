"""moto's S3 server, for the scripts that need an object store."""

import http.client
import subprocess
import sys
from pathlib import Path

import nodekit

PACKAGES = ["moto[server]==5.2.1", "boto3==1.43.11"]
# Any keys are right.
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


class Moto:
    """moto's S3, and a client that fills it. It needs `nodekit.with_packages(PACKAGES)`."""

    def __init__(self, folder):
        (self.port,) = nodekit.free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(Path(folder) / "moto.log", "wb")
        program = Path(sys.prefix) / "bin" / "moto_server"
        self.process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def client(self, bucket):
        """A client, once moto answers; the bucket is created."""
        import boto3
        import botocore.config

        nodekit.wait_until("moto", 60, self.answers, 0.2)
        client = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=botocore.config.Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        client.create_bucket(Bucket=bucket)
        return client

    def answers(self):
        if self.process.poll() is not None:
            nodekit.fail(f"moto ended with {self.process.returncode}: {self.log.name}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/moto-api/")
            return connection.getresponse().status < 500
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()
