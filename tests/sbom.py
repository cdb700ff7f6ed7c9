#!/usr/bin/env python3
"""Writes a software bill of materials of librendezvous.so, librendezvous.a and rdzv, in CycloneDX 1.5 (JSON).

The components are the packages that cargo resolves for rendezvous-ffi and rendezvous-cli on the target. Those that only
run at build time (procedural macros and what they use) have the scope "excluded". Versions and SHA-256 sums are those of
Cargo.lock. The output has no time and no random number, so that it is the same each time.
"""

import argparse
import json
import os
import subprocess
import tomllib
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHIPPED = ["rendezvous-ffi", "rendezvous-cli"]


def cargo(*arguments):
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def reachable(nodes, starts, passes):
    """Ids of the packages that `starts` lead to by normal dependencies, through packages for which `passes` holds."""
    found, left = set(), list(starts)
    while left:
        package = left.pop()
        if package in found:
            continue
        found.add(package)
        if passes(package):
            for dependency in nodes[package]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    left.append(dependency["pkg"])
    return found


def component(package, checksums, scope):
    name, version = package["name"], package["version"]
    made = {"type": "library", "bom-ref": f"pkg:cargo/{name}@{version}", "name": name, "version": version}
    made |= {"scope": scope, "purl": f"pkg:cargo/{name}@{version}"}
    if package.get("description"):
        made["description"] = " ".join(package["description"].split())
    if package.get("license"):
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in checksums:
        made["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    if package.get("repository"):
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def bill(target):
    metadata = json.loads(cargo("metadata", "--format-version=1", "--locked", f"--filter-platform={target}"))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(entry["name"], entry["version"]): entry["checksum"] for entry in locked if "checksum" in entry}
    starts = [id for id, package in packages.items() if package["name"] in SHIPPED]
    is_macro = {id for id, package in packages.items() if any("proc-macro" in made["kind"] for made in package["targets"])}
    everything = reachable(nodes, starts, lambda _: True)
    linked = reachable(nodes, starts, lambda id: id not in is_macro) - is_macro
    chosen = sorted(everything, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    components = [component(packages[id], checksums, "required" if id in linked else "excluded") for id in chosen]
    ref = lambda id: f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"
    dependencies = []
    for package in chosen:
        used = {ref(found["pkg"]) for found in nodes[package]["deps"] if found["pkg"] in everything
                and any(kind["kind"] is None for kind in found["dep_kinds"])}
        dependencies.append({"ref": ref(package), "dependsOn": sorted(used)})
    version = packages[starts[0]]["version"]
    content = json.dumps([components, dependencies], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "bom-ref": "librendezvous", "name": "librendezvous", "version": version,
                          "licenses": [{"expression": "Apache-2.0 OR MIT"}]},
            "properties": [{"name": "target", "value": target}],
        },
        "components": components,
        "dependencies": [{"ref": "librendezvous", "dependsOn": sorted(ref(start) for start in starts)}, *dependencies],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu", help="the target that is shipped")
    parser.add_argument("--output", default=os.path.join(ROOT, "target", "librendezvous.cdx.json"), help="the file")
    options = parser.parse_args()
    made = bill(options.target)
    os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")
    print(f"{len(made['components'])} components in {options.output}")


if __name__ == "__main__":
    main()
