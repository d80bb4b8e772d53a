/* Reads, writes and compares samples of WAV files: mono, 16 bits. */

/** Samples per second. */
export const RATE = 16_000

/** Returns the samples of a WAV file with a header of 44 bytes, as the local model server writes it. */
export function samplesOf(wave: Buffer): Int16Array {
  const data = wave.subarray(44)
  return new Int16Array(data.buffer.slice(data.byteOffset, data.byteOffset + (data.byteLength & ~1)))
}

/**
 * Encodes samples as a WAV file.
 *
 * @param rate Sample rate in the header
 */
export function waveOf(samples: Int16Array, rate = RATE): Buffer {
  const header = Buffer.alloc(44)
  header.write('RIFF', 0)
  header.writeUInt32LE(36 + samples.byteLength, 4)
  header.write('WAVEfmt ', 8)
  header.writeUInt32LE(16, 16)
  header.writeUInt16LE(1, 20)
  header.writeUInt16LE(1, 22)
  header.writeUInt32LE(rate, 24)
  header.writeUInt32LE(rate * 2, 28)
  header.writeUInt16LE(2, 32)
  header.writeUInt16LE(16, 34)
  header.write('data', 36)
  header.writeUInt32LE(samples.byteLength, 40)
  return Buffer.concat([header, Buffer.from(samples.buffer, samples.byteOffset, samples.byteLength)])
}

/** Concatenates recordings. */
export function join(parts: readonly Int16Array[]): Int16Array {
  const whole = new Int16Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

export function silence(seconds: number): Int16Array {
  return new Int16Array(Math.round(seconds * RATE))
}

/**
 * Returns the loudness of each tenth of a second. The values are nearly equal for two encodings of one recording, so tests use them to compare
 * encodings.
 */
export function loudness(samples: Int16Array): number[] {
  const step = RATE / 10
  return Array.from({ length: Math.floor(samples.length / step) }, (_, index) => {
    const part = samples.subarray(index * step, (index + 1) * step)
    return Math.sqrt(part.reduce((sum, sample) => sum + sample * sample, 0) / step)
  })
}

/** Returns the correlation of two series over their common length. 1 means the same shape. */
export function correlation(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length)
  const [x, y] = [a.slice(0, length), b.slice(0, length)].map((series) => {
    const mean = series.reduce((sum, value) => sum + value, 0) / length
    return series.map((value) => value - mean)
  }) as [number[], number[]]
  const dot = (p: number[], q: number[]) => p.reduce((sum, value, index) => sum + value * (q[index] ?? 0), 0)
  return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y))
}

/** Encodes samples as a WAV file with 32-bit floating-point numbers. Each channel is one list. */
export function floatWaveOf(channels: readonly Float32Array[], rate = RATE): Buffer {
  const [first = new Float32Array()] = channels
  const samples = new Float32Array(first.length * channels.length)
  for (const [index, channel] of channels.entries()) {
    for (const [at, sample] of channel.entries()) samples[at * channels.length + index] = sample
  }
  const file = Buffer.concat([waveOf(new Int16Array(), rate), Buffer.from(samples.buffer)])
  file.writeUInt32LE(file.length - 8, 4)
  file.writeUInt16LE(3, 20)
  file.writeUInt16LE(channels.length, 22)
  file.writeUInt32LE(rate * 4 * channels.length, 28)
  file.writeUInt16LE(4 * channels.length, 32)
  file.writeUInt16LE(32, 34)
  file.writeUInt32LE(samples.byteLength, 40)
  return file
}

/**
 * Returns WAV files of a voice whose channels or samples are unusual, each with the name of its defect. A decoder that just averages the channels
 * and rounds the samples would lose the voice.
 */
export function oddWaves(recording: Buffer): [string, Buffer][] {
  const voice = Float32Array.from(samplesOf(recording), (sample) => sample / 32_768)
  const map = (change: (sample: number, at: number) => number) => voice.map(change)
  const hum = (at: number) => 0.3 * Math.sin((2 * Math.PI * 50 * at) / RATE)
  const quiet = new Float32Array(voice.length)
  const every = (step: number, value: number) => map((sample, at) => (at % step === 0 ? value : sample))
  const opposite = map((sample) => -sample)
  return [
    ['opposite phase', floatWaveOf([voice, opposite])],
    ['opposite phase with a common hum', floatWaveOf([map((s, at) => s + hum(at)), map((s, at) => hum(at) - s)])],
    ['opposite phase in front of six channels', floatWaveOf([voice, opposite, quiet, quiet, quiet, quiet])],
    ['one of eight channels', floatWaveOf([...Array(7).fill(quiet), voice])],
    [
      'a voice next to the rumble of a subwoofer',
      floatWaveOf([quiet, quiet, voice, map((_, at) => 3 * hum(at)), quiet, quiet]),
    ],
    ['some samples that are not numbers', floatWaveOf([every(100, Number.NaN)])],
    ['some infinite samples', floatWaveOf([every(997, Number.NEGATIVE_INFINITY)])],
    ['some samples of garbage', floatWaveOf([every(997, 1e30)])],
    ['a channel that is not numbers', floatWaveOf([map(() => Number.NaN), voice])],
    ['the scale of 16-bit integers', floatWaveOf([map((sample) => sample * 32_768)])],
    ['a constant offset', floatWaveOf([map((sample) => sample + 5)])],
  ]
}
