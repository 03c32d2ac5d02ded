"""An AWS account, which moto simulates."""

import time
import urllib.error
import urllib.request

import boto3

from processes import free_ports

START_TIMEOUT = 60
INSTANCE_PROFILE = "node"


class Account:
    """A running moto server with everything that node classes of a tree select."""

    def __init__(self, processes, python, region):
        [port] = free_ports(1)
        self.url, self.region = f"http://127.0.0.1:{port}", region
        processes.start("moto", [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", port])
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
        """Creates the cluster, a role, and images. Tags the subnets of `zones`.

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
            "amiSelectorTerms": [{"id": image} for image in _images(ec2)],
            "subnetSelectorTerms": [{"tags": {"fleet": cluster}}],
            "securityGroupSelectorTerms": [{"name": "default"}],
        }


def _images(ec2):
    """Returns an image for each architecture."""
    found = ec2.describe_images(Owners=["amazon"])["Images"]
    x86 = next(image["ImageId"] for image in found if image["Architecture"] == "x86_64")
    arm = ec2.register_image(Name="arm64", Architecture="arm64")["ImageId"]
    return [x86, arm]


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
