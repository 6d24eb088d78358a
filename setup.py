"""Finds the packages: the folders of ldpbayes and, which pyproject.toml cannot add to these, models/."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["ldpbayes", "ldpbayes.*"]), "ldpbayes.models"],
    package_dir={"ldpbayes.models": "models"},
)
