import { signal } from '@preact/signals'

/** Bars of a waveform at most. */
const BARS_MAX = 2_400
/** Bars a second of audio. */
const BARS_PER_SECOND = 40

/** Sound that was decoded: drawn, and played from any place. Nothing of it leaves the page. */
export class Player {
  /** Where it is, in seconds. */
  readonly at = signal(0)
  readonly isPlaying = signal(false)
  /** Undefined while there is none, or where this browser cannot decode it. */
  readonly sound = signal<AudioBuffer | undefined>(undefined)
  #context: AudioContext | undefined
  #source: AudioBufferSourceNode | undefined
  #startedAt = 0
  #frame = 0

  /** Takes another sound. @returns Whether this browser can decode it */
  async load(file: Blob): Promise<boolean> {
    this.stop()
    this.at.value = 0
    this.sound.value = undefined
    this.#context ??= new AudioContext()
    const bytes = await file.arrayBuffer()
    this.sound.value = await this.#context.decodeAudioData(bytes).catch(() => undefined)
    return this.sound.value !== undefined
  }

  /** Plays from a place, in seconds, to the end. */
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

  /** Falls silent, and stays where it is. */
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

/** The loudest of each piece of a sound, 0 to 1, so many that they can be seen. */
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
