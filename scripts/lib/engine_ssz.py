"""The Engine API by REST and SSZ (execution-apis #793), as the Python library remerkleable encodes
it: containers of every fork, their values as JSON-RPC has them, and a client. It needs
`nodekit.with_packages(PACKAGES)`.
"""

import http.client
import json

from nodekit import bearer
from remerkleable.basic import boolean, uint, uint8, uint64, uint256
from remerkleable.bitfields import Bitvector
from remerkleable.byte_arrays import ByteList, ByteVector
from remerkleable.complex import Container, List

PACKAGES = ["eth-remerkleable==0.1.31"]
FORKS = ["paris", "shanghai", "cancun", "prague", "osaka", "amsterdam"]
STATUS = ["VALID", "INVALID", "SYNCING", "ACCEPTED"]
CELLS = 128
BLOB = 131_072
# Names that JSON-RPC has for other reasons than its spelling.
IN_JSON = {"payload": "executionPayload"}


def since(fork, other):
    return FORKS.index(fork) >= FORKS.index(other)


# -- containers ------------------------------------------------------------------------------------


def container(name, **fields):
    return type(name, (Container,), {"__annotations__": fields})


def optional(kind):
    return List[kind, 1]


Hash, Address, Proof = ByteVector[32], ByteVector[20], ByteVector[48]
Bytes = ByteList[2**30]
Transactions, Requests = List[Bytes, 2**20], List[Bytes, 256]
Withdrawal = container(
    "Withdrawal", index=uint64, validator_index=uint64, address=Address, amount=uint64
)
Withdrawals = List[Withdrawal, 16]
ForkchoiceState = container(
    "ForkchoiceState", head_block_hash=Hash, safe_block_hash=Hash, finalized_block_hash=Hash
)
PayloadStatus = container(
    "PayloadStatus",
    status=uint8,
    latest_valid_hash=optional(Hash),
    validation_error=optional(ByteList[1024]),
)
ForkchoiceUpdateResponse = container(
    "ForkchoiceUpdateResponse", payload_status=PayloadStatus, payload_id=optional(ByteVector[8])
)
BodiesByHashRequest = container("BodiesByHashRequest", block_hashes=List[Hash, 32])
BlobsRequest = container("BlobsRequest", versioned_hashes=List[Hash, 128])
BlobsV4Request = container(
    "BlobsV4Request", versioned_hashes=List[Hash, 128], indices_bitarray=Bitvector[CELLS]
)
Blob, Cell = ByteVector[BLOB], ByteVector[2048]


def response(name, contents):
    entry = container(f"{name}Entry", available=boolean, contents=contents)
    return container(f"{name}Response", entries=List[entry, 128])


BlobsV1Response = response("BlobsV1", container("BlobAndProofV1", blob=Blob, proof=Proof))
BlobsV2Response = response(
    "BlobsV2", container("BlobAndProofV2", blob=Blob, proofs=List[Proof, CELLS])
)
BlobsV4Response = response(
    "BlobsV4",
    container(
        "BlobCellsAndProofs",
        blob_cells=List[optional(Cell), CELLS],
        proofs=List[optional(Proof), CELLS],
    ),
)


class Shapes:
    """The containers of one fork."""

    def __init__(self, fork):
        self.fork = fork
        has = {name: since(fork, name) for name in FORKS}
        payload = {
            "parent_hash": Hash, "fee_recipient": Address, "state_root": Hash,
            "receipts_root": Hash, "logs_bloom": ByteVector[256], "prev_randao": Hash,
            "block_number": uint64, "gas_limit": uint64, "gas_used": uint64, "timestamp": uint64,
            "extra_data": ByteList[32], "base_fee_per_gas": uint256, "block_hash": Hash,
            "transactions": Transactions,
        }  # fmt: skip
        attributes = {"timestamp": uint64, "prev_randao": Hash, "suggested_fee_recipient": Address}
        body = {"transactions": Transactions}
        if has["shanghai"]:
            payload["withdrawals"] = attributes["withdrawals"] = body["withdrawals"] = Withdrawals
        if has["cancun"]:
            payload |= {"blob_gas_used": uint64, "excess_blob_gas": uint64}
            attributes["parent_beacon_block_root"] = Hash
        if has["amsterdam"]:
            payload |= {"block_access_list": Bytes, "slot_number": uint64}
            attributes |= {"slot_number": uint64, "target_gas_limit": uint64}
            body["block_access_list"] = Bytes
        self.Payload = container("ExecutionPayload", **payload)
        envelope = {"payload": self.Payload}
        built = {"payload": self.Payload, "block_value": uint256}
        update = {"forkchoice_state": ForkchoiceState}
        update["payload_attributes"] = optional(container("PayloadAttributes", **attributes))
        if has["cancun"]:
            envelope["parent_beacon_block_root"] = Hash
            proofs = 4096 * (CELLS if has["osaka"] else 1)
            built["blobs_bundle"] = container(
                "BlobsBundle",
                commitments=List[Proof, 4096],
                proofs=List[Proof, proofs],
                blobs=List[Blob, 4096],
            )
        if has["prague"]:
            envelope["execution_requests"] = built["execution_requests"] = Requests
        if has["cancun"]:
            built["should_override_builder"] = boolean
        if has["amsterdam"]:
            update["custody_columns"] = optional(Bitvector[CELLS])
        self.Envelope = container("ExecutionPayloadEnvelope", **envelope)
        self.BuiltPayload = container("BuiltPayload", **built)
        self.ForkchoiceUpdate = container("ForkchoiceUpdate", **update)
        entry = container("BodyEntry", available=boolean, body=container("Body", **body))
        self.Bodies = container("BodiesResponse", entries=List[entry, 32])

    def envelope(self, payload, root=None, requests=None):
        """The bytes of a payload in JSON, and of what `engine_newPayload` takes beside it."""
        value = {"executionPayload": payload}
        value |= {"parentBeaconBlockRoot": root, "executionRequests": requests}
        return encode(self.Envelope, value)

    def forkchoice(self, state, attributes=None, columns=None):
        value = {"forkchoiceState": state, "custodyColumns": [columns] if columns else []}
        value["payloadAttributes"] = [attributes] if attributes else []
        return encode(self.ForkchoiceUpdate, value)


SHAPES = {fork: Shapes(fork) for fork in FORKS}


# -- values ----------------------------------------------------------------------------------------


def in_json(name):
    first, *more = name.split("_")
    return IN_JSON.get(name, first + "".join(word.capitalize() for word in more))


def view(kind, value):
    """The view of a value in JSON."""
    if issubclass(kind, Container):
        fields = kind.fields().items()
        return kind(**{name: view(of, value[in_json(name)]) for name, of in fields})
    if issubclass(kind, (ByteVector, ByteList)):
        return kind(bytes.fromhex(value.removeprefix("0x")))
    if issubclass(kind, Bitvector):
        return kind.decode_bytes(bytes.fromhex(value.removeprefix("0x")))
    if issubclass(kind, List):
        return kind(*[view(kind.element_cls(), each) for each in value])
    if issubclass(kind, boolean):
        return kind(value)
    if issubclass(kind, uint):
        return kind(int(value, 16) if isinstance(value, str) else value)
    raise TypeError(kind)


def encode(kind, value):
    return view(kind, value).encode_bytes()


def plain(value):
    """A view as JSON. Optionals are lists of at most one."""
    if isinstance(value, Container):
        return {in_json(name): plain(getattr(value, name)) for name in value.fields()}
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, List):
        return [plain(each) for each in value]
    if isinstance(value, boolean):
        return bool(value)
    if isinstance(value, uint):
        return hex(value)
    raise TypeError(type(value))


def decode(kind, raw):
    return plain(kind.decode_bytes(raw))


def status(value):
    """A decoded status in the form of JSON-RPC."""
    latest, error = value["latestValidHash"], value["validationError"]
    return {
        "status": STATUS[int(value["status"], 16)],
        "latestValidHash": latest[0] if latest else None,
        "validationError": bytes.fromhex(error[0][2:]).decode() if error else None,
    }


# -- a client --------------------------------------------------------------------------------------


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code, kind):
        self.code, self.kind = code, kind
        super().__init__(f"{code} {kind}")


class Rest:
    """A client of a node's authenticated port, on one connection."""

    def __init__(self, node):
        self.node = node
        self.connection = http.client.HTTPConnection("127.0.0.1", node.auth_port, timeout=60)

    def ask(self, method, path, fork=None, body=None):
        """The bytes of the answer; None if there is none."""
        headers = {"Authorization": f"Bearer {bearer(self.node.engine.secret)}"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
        if fork:
            headers["Eth-Execution-Version"] = fork
        self.connection.request(method, f"/engine/v1/{path}", body, headers)
        answer = self.connection.getresponse()
        raw = answer.read()
        if answer.status == 204:
            return None
        if answer.status != 200:
            kind = answer.headers["Content-Type"]
            if kind != "application/problem+json":
                raise Problem(answer.status, f"{kind}: {raw[:200]!r}")
            raise Problem(answer.status, json.loads(raw)["type"].rpartition("/")[2])
        return raw

    def post(self, path, fork, body):
        return self.ask("POST", path, fork, body)

    def get(self, path, fork=None):
        return self.ask("GET", path, fork)
