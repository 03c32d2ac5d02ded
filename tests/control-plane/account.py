"""An AWS account, which moto simulates."""

import json
import os
import time
import urllib.error
import urllib.request

import boto3

START_TIMEOUT = 60
INSTANCE_PROFILE = "node"
# moto has no image for arm64, and ignores the architecture of registered ones.
IMAGES = {"x86_64": "ami-000000000000000a1", "arm64": "ami-000000000000000a2"}


class Account:
    """A running moto server with everything that node classes of a tree select."""

    def __init__(self, processes, python, region):
        [port] = processes.free_ports(1)
        self.url, self.region = f"http://127.0.0.1:{port}", region
        images = processes.directory / "images.json"
        images.write_text(json.dumps([_image(arch) for arch in IMAGES]))
        environment = {**os.environ, "MOTO_AMIS_PATH": str(images)}
        command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
        processes.start("moto", command, env=environment)
        _wait_until_reachable(self.url)

    def client(self, service):
        """Returns a client of an AWS service."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def environment(self):
        """Returns the variables that lead an AWS client to this account."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def prepare(self, cluster, zones):
        """Creates the cluster and a role. Tags the subnets of `zones`.

        Returns the selector terms of images, subnets and security groups.
        """
        iam, ec2 = self.client("iam"), self.client("ec2")
        iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=INSTANCE_PROFILE)
        iam.add_role_to_instance_profile(InstanceProfileName=INSTANCE_PROFILE, RoleName="node")
        subnets = ec2.describe_subnets()["Subnets"]
        used = [subnet["SubnetId"] for subnet in subnets if subnet["AvailabilityZone"] in zones]
        ec2.create_tags(Resources=used, Tags=[{"Key": "fleet", "Value": cluster}])
        self.client("eks").create_cluster(
            name=cluster,
            version="1.33",
            roleArn="arn:aws:iam::123456789012:role/cluster",
            resourcesVpcConfig={"subnetIds": used},
        )
        return {
            "amiSelectorTerms": [{"id": image} for image in IMAGES.values()],
            "subnetSelectorTerms": [{"tags": {"fleet": cluster}}],
            "securityGroupSelectorTerms": [{"name": "default"}],
        }


def _image(architecture):
    """Returns an image in the format of `MOTO_AMIS_PATH`."""
    return {
        "ami_id": IMAGES[architecture],
        "architecture": architecture,
        "name": f"al2023-{architecture}",
        "description": "Amazon Linux 2023",
        "owner_id": "801119661308",
        "public": True,
        "virtualization_type": "hvm",
        "state": "available",
        "platform": None,
        "image_type": "machine",
        "hypervisor": "xen",
        "root_device_name": "/dev/xvda",
        "root_device_type": "ebs",
        "sriov": "simple",
    }


def _wait_until_reachable(url):
    deadline = time.time() + START_TIMEOUT
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.time() > deadline:
                raise
            time.sleep(0.5)
