/*
 * Writes a tiny model file for llama.cpp (GGUF format) with random weights, so that tests need no download. The output of the model has no
 * meaning. Control tokens begin with id 259, after 3 special tokens and 256 single bytes.
 */
import { writeFile } from 'node:fs/promises'

const [EMBEDDING, LAYERS, HEADS, FEED_FORWARD] = [32, 1, 2, 32]
const ALIGNMENT = 32
const [U32, I32, F32, BOOL, STRING, ARRAY] = [4, 5, 6, 7, 8, 9]
/** Codes of the token types in the GGUF format. */
const [NORMAL, UNKNOWN, CONTROL, BYTE] = [1, 2, 3, 6]

export interface RandomGguf {
  /** Chat template that is stored in the file. If undefined, then the file has none. */
  readonly template?: string | undefined
  readonly controlTokens?: readonly string[]
  readonly addsBos?: boolean
  /** Further ordinary tokens. The first of these has the id after the last control token. */
  readonly words?: readonly string[]
}

export async function writeRandomGguf(path: string, options: RandomGguf): Promise<void> {
  const { template, controlTokens = ['<|im_start|>', '<|im_end|>'], addsBos = false, words: more = [] } = options
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`)
  const words = [...more, '▁the', '▁of', '▁and', '▁to', '▁in']
  const tokens = ['<unk>', '<s>', '</s>', ...bytes, ...controlTokens, ...words]
  const types = [UNKNOWN, CONTROL, CONTROL, ...bytes.map(() => BYTE)]
  types.push(...controlTokens.map(() => CONTROL), ...words.map(() => NORMAL))
  const metadata = [
    entry('general.architecture', string('llama'), STRING),
    entry('llama.context_length', u32(8_192), U32),
    entry('llama.embedding_length', u32(EMBEDDING), U32),
    entry('llama.block_count', u32(LAYERS), U32),
    entry('llama.feed_forward_length', u32(FEED_FORWARD), U32),
    entry('llama.attention.head_count', u32(HEADS), U32),
    entry('llama.attention.head_count_kv', u32(HEADS), U32),
    entry('llama.attention.layer_norm_rms_epsilon', f32(1e-5), F32),
    entry('llama.rope.dimension_count', u32(EMBEDDING / HEADS), U32),
    entry('llama.vocab_size', u32(tokens.length), U32),
    entry('tokenizer.ggml.model', string('llama'), STRING),
    entry('tokenizer.ggml.tokens', array(STRING, tokens.map(string)), ARRAY),
    entry(
      'tokenizer.ggml.scores',
      array(
        F32,
        tokens.map((_, i) => f32(-i)),
      ),
      ARRAY,
    ),
    entry('tokenizer.ggml.token_type', array(I32, types.map(u32)), ARRAY),
    entry('tokenizer.ggml.bos_token_id', u32(1), U32),
    entry('tokenizer.ggml.eos_token_id', u32(2), U32),
    entry('tokenizer.ggml.unknown_token_id', u32(0), U32),
    entry('tokenizer.ggml.add_bos_token', Buffer.from([addsBos ? 1 : 0]), BOOL),
  ]
  if (template !== undefined) metadata.push(entry('tokenizer.chat_template', string(template), STRING))
  await writeFile(path, assemble(metadata, tensorsOf(tokens.length)))
}

interface Tensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly isNorm?: boolean
}

function tensorsOf(vocabulary: number): Tensor[] {
  const square = [EMBEDDING, EMBEDDING]
  const block = Array.from({ length: LAYERS }, (_, i): Tensor[] => [
    ...['attn_q', 'attn_k', 'attn_v', 'attn_output'].map((name) => ({
      name: `blk.${i}.${name}.weight`,
      shape: square,
    })),
    ...['ffn_gate', 'ffn_up'].map((name) => ({ name: `blk.${i}.${name}.weight`, shape: [EMBEDDING, FEED_FORWARD] })),
    { name: `blk.${i}.ffn_down.weight`, shape: [FEED_FORWARD, EMBEDDING] },
    ...['attn_norm', 'ffn_norm'].map((name) => ({ name: `blk.${i}.${name}.weight`, shape: [EMBEDDING], isNorm: true })),
  ]).flat()
  return [
    { name: 'token_embd.weight', shape: [EMBEDDING, vocabulary] },
    { name: 'output_norm.weight', shape: [EMBEDDING], isNorm: true },
    ...block,
  ]
}

function assemble(metadata: readonly Buffer[], tensors: readonly Tensor[]): Buffer {
  const infos: Buffer[] = []
  const data: Buffer[] = []
  let offset = 0
  for (const { name, shape, isNorm = false } of tensors) {
    const weights = padded(
      weightsOf(
        shape.reduce((product, size) => product * size, 1),
        isNorm,
      ),
    )
    infos.push(string(name), u32(shape.length), ...shape.map(u64), u32(0), u64(offset))
    data.push(weights)
    offset += weights.length
  }
  const counts = [u32(3), u64(tensors.length), u64(metadata.length)]
  const head = Buffer.concat([Buffer.from('GGUF'), ...counts, ...metadata, ...infos])
  return Buffer.concat([padded(head), ...data])
}

/** Returns pseudo-random weights that are the same in every run. Weights of norm layers are 1. */
function weightsOf(count: number, isNorm: boolean): Buffer {
  let state = 12_345
  const weights = Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0
    return isNorm ? 1 : (state / 2 ** 32 - 0.5) / 5
  })
  return Buffer.from(weights.buffer)
}

function padded(bytes: Buffer): Buffer {
  const rest = bytes.length % ALIGNMENT
  return rest === 0 ? bytes : Buffer.concat([bytes, Buffer.alloc(ALIGNMENT - rest)])
}

function entry(key: string, value: Buffer, type: number): Buffer {
  return Buffer.concat([string(key), u32(type), value])
}

function array(type: number, values: readonly Buffer[]): Buffer {
  return Buffer.concat([u32(type), u64(values.length), ...values])
}

function string(text: string): Buffer {
  const bytes = Buffer.from(text)
  return Buffer.concat([u64(bytes.length), bytes])
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}

function f32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeFloatLE(value)
  return bytes
}
