import { signal } from '@preact/signals'

const BARS_MAX = 2_400
const BARS_PER_SECOND = 40

export class Player {
  readonly at = signal(0)
  readonly isPlaying = signal(false)
  /** Undefined if nothing is loaded, or if this browser cannot decode the file. */
  readonly sound = signal<AudioBuffer | undefined>(undefined)
  #context: AudioContext | undefined
  #source: AudioBufferSourceNode | undefined
  #startedAt = 0
  #frame = 0

  /** @returns Whether this browser can decode the file */
  async load(file: Blob): Promise<boolean> {
    this.stop()
    this.at.value = 0
    this.sound.value = undefined
    this.#context ??= new AudioContext()
    const bytes = await file.arrayBuffer()
    this.sound.value = await this.#context.decodeAudioData(bytes).catch(() => undefined)
    return this.sound.value !== undefined
  }

  play(from: number): void {
    const [context, sound] = [this.#context, this.sound.value]
    if (!context || !sound) return
    this.stop()
    void context.resume()
    const source = context.createBufferSource()
    source.buffer = sound
    source.connect(context.destination)
    source.start(0, from)
    source.onended = () => this.#source === source && this.stop()
    this.#source = source
    this.#startedAt = context.currentTime - from
    this.isPlaying.value = true
    this.at.value = from
    this.#follow(context, sound.duration)
  }

  stop(): void {
    cancelAnimationFrame(this.#frame)
    const source = this.#source
    this.#source = undefined
    source?.stop()
    this.isPlaying.value = false
  }

  #follow(context: AudioContext, duration: number): void {
    this.#frame = requestAnimationFrame(() => {
      this.at.value = Math.min(duration, context.currentTime - this.#startedAt)
      this.#follow(context, duration)
    })
  }
}

/** The bars of a waveform: peaks of equal parts of the audio, scaled to 0 to 1. */
export function barsOf(sound: AudioBuffer): readonly number[] {
  const samples = sound.getChannelData(0)
  const count = Math.max(1, Math.min(BARS_MAX, Math.round(sound.duration * BARS_PER_SECOND)))
  const length = samples.length / count
  const loudest = Array.from({ length: count }, (_, nth) => {
    let most = 0
    const end = Math.floor((nth + 1) * length)
    for (let at = Math.floor(nth * length); at < end; at++) most = Math.max(most, Math.abs(samples[at] ?? 0))
    return most
  })
  const top = Math.max(0.01, ...loudest)
  return loudest.map((value) => value / top)
}
