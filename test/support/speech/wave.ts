/** Samples in and out of WAV files, mono and 16 bits. */

/** What everything is decoded to, in samples a second. */
export const RATE = 16_000

/** The samples of a plain WAV file as the server writes it. */
export function samplesOf(wave: Buffer): Int16Array {
  const data = wave.subarray(44)
  return new Int16Array(data.buffer.slice(data.byteOffset, data.byteOffset + (data.byteLength & ~1)))
}

/** A WAV file. @param rate Samples a second, as the header says it */
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

/** Recordings one after the other. */
export function join(parts: readonly Int16Array[]): Int16Array {
  const whole = new Int16Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    whole.set(part, at)
    at += part.length
  }
  return whole
}

/** Nothing to hear. */
export function silence(seconds: number): Int16Array {
  return new Int16Array(Math.round(seconds * RATE))
}

/** How loud each tenth of a second is: two codings of one recording have nearly the same. */
export function loudness(samples: Int16Array): number[] {
  const step = RATE / 10
  return Array.from({ length: Math.floor(samples.length / step) }, (_, index) => {
    const part = samples.subarray(index * step, (index + 1) * step)
    return Math.sqrt(part.reduce((sum, sample) => sum + sample * sample, 0) / step)
  })
}

/** Correlation of two series over their common length, 1 for the same shape. */
export function correlation(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length)
  const [x, y] = [a.slice(0, length), b.slice(0, length)].map((series) => {
    const mean = series.reduce((sum, value) => sum + value, 0) / length
    return series.map((value) => value - mean)
  }) as [number[], number[]]
  const dot = (p: number[], q: number[]) => p.reduce((sum, value, index) => sum + value * (q[index] ?? 0), 0)
  return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y))
}
