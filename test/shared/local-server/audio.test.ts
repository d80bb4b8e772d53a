import { deflateRawSync, gzipSync } from 'node:zlib'
import { afterAll, describe, expect, test } from 'vitest'
import { makeKinds } from '../../support/speech/kinds.ts'
import { findEnvironment, openServer } from '../../support/speech/running.ts'
import { findSpeech } from '../../support/speech/speech.ts'
import {
  correlation,
  floatWaveOf,
  loudness,
  oddWaves,
  RATE,
  samplesOf,
  silence,
  waveOf,
} from '../../support/speech/wave.ts'

const environment = await findEnvironment()
const clips = environment && (await findSpeech())
const original = clips?.beckett?.bytes ?? Buffer.alloc(0)
const kinds = environment && clips?.beckett ? await makeKinds(environment, clips.beckett.file) : {}
const kind = (name: string) => kinds[name] ?? Buffer.alloc(0)

describe.skipIf(!clips)('the audio decoder of the local model server', { timeout: 120_000 }, () => {
  const local = openServer()
  afterAll(() => local[Symbol.asyncDispose]())
  const refusal = async (file: Buffer, path = '/audio/probe') => {
    const { status, json } = await local.post(path, file)
    return { status, code: json.error?.code, message: json.error?.message }
  }

  test('is tested with recordings in nine formats', () => {
    const endings = new Set(Object.keys(kinds).map((name) => name.split('.').at(-1)))
    expect(endings).toEqual(new Set('flac m4a mp3 mp4 mpeg mpga ogg wav webm'.split(' ')))
  })

  test.each(Object.keys(kinds))('decodes %s to the original recording', async (name) => {
    const { status, headers, bytes } = await local.post('/audio/decode', kind(name))
    expect(status).toBe(200)
    const [container, codec] = [headers['x-audio-container'], headers['x-audio-codec']]
    const probe = (await local.post('/audio/probe', kind(name))).json
    expect(probe).toMatchObject({ container, codec })
    const samples = samplesOf(bytes)
    expect(samples.length / RATE).toBeCloseTo(probe.duration, 3)
    expect(Math.abs(probe.duration - 9.963)).toBeLessThan(0.06)
    expect(correlation(loudness(samples), loudness(samplesOf(original)))).toBeGreaterThan(0.95)
  })

  test.each(oddWaves(original))('decodes speech from a wave file with %s', async (_, file) => {
    const { status, bytes } = await local.post('/audio/decode', file)
    expect(status).toBe(200)
    const samples = samplesOf(bytes)
    expect(correlation(loudness(samples), loudness(samplesOf(original)))).toBeGreaterThan(0.95)
    expect(Math.max(...loudness(samples))).toBeGreaterThan(0.1 * Math.max(...loudness(samplesOf(original))))
  })

  test('reduces the volume of the whole file if samples exceed full scale', async () => {
    const tone = (factor: number) => Float32Array.from({ length: 4 * RATE }, (_, at) => factor * Math.sin(at))
    const whole = new Float32Array(8 * RATE)
    whole.set(tone(0.5))
    whole.set(tone(40), 4 * RATE)
    const { bytes } = await local.post('/audio/decode', floatWaveOf([whole]))
    const [quiet = 0, loud = 0] = [10, 70].map((at) => loudness(samplesOf(bytes))[at])
    expect(loud / quiet).toBeCloseTo(80, -1)
  })

  test('refuses with invalid_audio a file whose samples are mostly NaN', async () => {
    const file = floatWaveOf([Float32Array.from({ length: RATE }, (_, at) => (at % 3 === 0 ? 0.1 : Number.NaN))])
    const message = 'Most samples of the file are not numbers, or are far too large.'
    expect(await refusal(file)).toEqual({ status: 400, code: 'invalid_audio', message })
  })

  test('decodes to a requested sample rate, and refuses a rate of 1 MHz with invalid_value', async () => {
    const { bytes } = await local.post('/audio/decode?rate=8000', original)
    expect(bytes.readUInt32LE(24)).toBe(8_000)
    expect(samplesOf(bytes).length / 8_000).toBeCloseTo(9.963, 2)
    expect(await refusal(original, '/audio/decode?rate=1000000')).toMatchObject({ status: 400, code: 'invalid_value' })
  })

  const bomb = () => gzipSync(Buffer.alloc(50_000_000))
  const playlists = [
    '#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n',
    'ffconcat version 1.0\nfile /etc/passwd\n',
    '[playlist]\nFile1=http://127.0.0.1:1/x.wav\nNumberOfEntries=1\n',
  ]
  test.each<[string, () => Buffer]>([
    ['an empty file', () => Buffer.alloc(0)],
    ['random bytes', () => noise(100_000)],
    ['a text file', () => Buffer.from('RIFF is what this text begins with, and nothing more')],
    ['a gzip bomb', bomb],
    ['a zip bomb', () => zipOf(Buffer.alloc(50_000_000))],
    ['a gzip bomb after the header of an mp3', () => Buffer.concat([kind('mp3.mp3').subarray(0, 4), bomb()])],
    ...playlists.map((text) => [`a playlist, ${text.slice(0, 11)}`, () => Buffer.from(text)] as [string, () => Buffer]),
    ['an image', () => Buffer.from('89504e470d0a1a0a0000000d4948445200000001', 'hex')],
    ['an mp4 cut off before its index', () => kind('aac.mp4').subarray(0, 60_000)],
    ['an m4a cut off in its audio data', () => kind('aac-faststart.m4a').subarray(0, 30_000)],
    ['a truncated flac', () => kind('flac.flac').subarray(0, 50_000)],
    ['a truncated wav', () => kind('wav-s16.wav').subarray(0, 100_000)],
    ['a webm cut off in its header', () => kind('opus.webm').subarray(0, 200)],
    ['a wav without samples', () => waveOf(new Int16Array(0))],
  ])('refuses %s with status 400 and invalid_audio', async (_, make) => {
    const refused = { status: 400, code: 'invalid_audio', message: expect.stringMatching(/^The file .*\.$/) }
    expect(await refusal(make())).toEqual(refused)
  })

  test('refuses 0.05 s with audio_too_short, and accepts 0.1 s', async () => {
    expect(await refusal(waveOf(silence(0.05)))).toMatchObject({ status: 400, code: 'audio_too_short' })
    expect((await local.post('/audio/probe', waveOf(silence(0.1)))).json.duration).toBeCloseTo(0.1, 5)
  })

  test('refuses audio above the maximum duration with audio_too_long, however small the file', async () => {
    await using short = openServer({ audioSecondsMax: 9 })
    const refused = [original, kind('flac.flac'), waveOf(silence(60))].map((file) => short.post('/audio/probe', file))
    for (const { status, json } of await Promise.all(refused)) {
      expect([status, json.error.code]).toEqual([400, 'audio_too_long'])
    }
  })

  test.each([
    ['1 Hz', () => waveOf(silence(0.1), 1), '1 Hz'],
    ['3,999 Hz', () => waveOf(silence(1), 3_999), '3999 Hz'],
    ['a million Hz', () => waveOf(silence(1), 1_000_000), '1000000 Hz'],
    ['sixteen channels', () => withChannels(waveOf(silence(1)), 16), '16 channels'],
  ])('refuses a file whose header declares %s, and names the value in the message', async (_, make, named) => {
    expect(await refusal(make())).toMatchObject({
      status: 400,
      code: 'invalid_audio',
      message: expect.stringContaining(named),
    })
  })

  test.each([
    ['a flac', () => withFlacSamples(kind('flac.flac'), 5 * 3_600 * RATE)],
    ['an ogg', () => withLastGranule(kind('opus.ogg'), 48_000n * 3_600n * 1_000n)],
  ])('refuses %s with audio_too_long if the header declares more than four hours', async (_, make) => {
    const message = 'The audio is longer than 4 hours.'
    expect(await refusal(make())).toEqual({ status: 400, code: 'audio_too_long', message })
  })

  test('applies a lower maximum duration if a call requests one', async () => {
    const message = 'The audio is longer than 5 seconds.'
    const refused = { status: 400, code: 'audio_too_long', message }
    expect(await refusal(original, '/audio/probe?seconds_max=5')).toEqual(refused)
    expect(await refusal(kind('mp3.mp3'), '/audio/probe?seconds_max=5')).toEqual(refused)
    expect((await local.post('/audio/probe?seconds_max=10', original)).status).toBe(200)
    expect(await refusal(original, '/audio/probe?seconds_max=-1')).toMatchObject({ code: 'invalid_value' })
  })

  test('returns the real duration of an mp4 whose header declares half a day', async () => {
    const { json } = await local.post('/audio/probe', withDuration(kind('aac.mp4'), 0x7fff_ffff))
    expect(json.duration).toBeCloseTo(9.98, 2)
  })

  test('returns the real duration of a streamed wav without a length in its header', async () => {
    const file = waveOf(silence(1))
    file.writeUInt32LE(0xffff_ffff, 4)
    file.writeUInt32LE(0xffff_ffff, 40)
    expect((await local.post('/audio/probe', file)).json.duration).toBeCloseTo(1, 2)
  })

  test('responds with status 200 or 400 to hundreds of damaged files, and continues to run', async () => {
    const random = generator(7)
    const damaged = Object.values(kinds).flatMap((file) =>
      Array.from({ length: 15 }, () => damage(file.subarray(0, 60_000), random)),
    )
    const answers: number[] = []
    for (let at = 0; at < damaged.length; at += 4) {
      const four = damaged.slice(at, at + 4).map((file) => local.post('/audio/probe', file))
      answers.push(...(await Promise.all(four)).map(({ status }) => status))
    }
    expect(new Set(answers)).toEqual(new Set([200, 400]))
    expect((await local.post('/audio/probe', original)).status).toBe(200)
  })

  test('refuses an upload of 65 MiB with status 413, and accepts the next upload', async () => {
    const { status, json } = await local.post('/audio/probe', Buffer.alloc(65 * 1024 * 1024))
    expect([status, json.error.code]).toEqual([413, 'request_too_large'])
    expect((await local.post('/audio/probe', original)).status).toBe(200)
  })
})

/** Returns a generator of random numbers from 0 to 1. Equal seeds give equal sequences. */
function generator(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1_103_515_245 + 12_345) & 0x7fff_ffff
    return state / 0x7fff_ffff
  }
}

function noise(length: number): Buffer {
  const random = generator(3)
  return Buffer.from(Uint8Array.from({ length }, () => 256 * random()))
}

/** Changes a few bytes of a file. Most of them are in the header, where a change has the largest effect. */
function damage(file: Buffer, random: () => number): Buffer {
  const copy = Buffer.from(file)
  for (let count = 0; count < 12; count++) {
    const reach = random() < 0.7 ? Math.min(600, copy.length) : copy.length
    copy[Math.floor(random() * reach)] = 256 * random()
  }
  return copy
}

/** Returns a minimal zip archive with one file. */
function zipOf(data: Buffer): Buffer {
  const packed = deflateRawSync(data)
  const head = Buffer.alloc(31)
  head.writeUInt32LE(0x0403_4b50, 0)
  head.writeUInt16LE(20, 4)
  head.writeUInt16LE(8, 8)
  head.writeUInt32LE(packed.length, 18)
  head.writeUInt32LE(data.length, 22)
  head.writeUInt16LE(1, 26)
  head.write('a', 30)
  return Buffer.concat([head, packed])
}

/** Changes the number of channels in the header of a WAV file. */
function withChannels(file: Buffer, channels: number): Buffer {
  const copy = Buffer.from(file)
  copy.writeUInt16LE(channels, 22)
  copy.writeUInt32LE(RATE * 2 * channels, 28)
  copy.writeUInt16LE(2 * channels, 32)
  return copy
}

/**
 * Changes the number of samples that a FLAC file declares. STREAMINFO (RFC 9639 §8.2) begins at byte 8. After ten bytes, it has 20 bits of rate,
 * 3 of channels, 5 of depth and 36 of length.
 */
function withFlacSamples(file: Buffer, samples: number): Buffer {
  const copy = Buffer.from(file)
  copy.writeUInt32BE(samples, 22)
  return copy
}

/** Changes the length that the last page of an Ogg file declares (RFC 3533 §6). */
function withLastGranule(file: Buffer, granule: bigint): Buffer {
  const copy = Buffer.from(file)
  const at = copy.lastIndexOf('OggS')
  copy.writeBigUInt64LE(granule, at + 6)
  copy.writeUInt32LE(0, at + 22)
  copy.writeUInt32LE(oggChecksum(copy.subarray(at)), at + 22)
  return copy
}

/** Checksum of an Ogg page: CRC-32 with the polynomial 0x04c11db7, not reflected, initial value 0. */
function oggChecksum(page: Buffer): number {
  let crc = 0
  for (const byte of page) {
    crc ^= byte << 24
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000_0000 ? (crc << 1) ^ 0x04c1_1db7 : crc << 1
  }
  return crc >>> 0
}

/** Changes the duration that an mp4 file declares in its boxes mvhd, tkhd and mdhd (ISO 14496-12, version 0). */
function withDuration(file: Buffer, duration: number): Buffer {
  const copy = Buffer.from(file)
  for (const [box, offset] of [
    ['mvhd', 20],
    ['tkhd', 24],
    ['mdhd', 20],
  ] as const) {
    const at = copy.indexOf(box)
    if (at >= 0) copy.writeUInt32BE(duration, at + offset)
  }
  return copy
}
