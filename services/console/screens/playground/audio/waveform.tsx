import { useMemo } from 'preact/hooks'
import { barsOf, type Player } from './player.ts'
import type { Transcript } from './transcript.ts'

/** Pixels per second, reduced if the waveform would exceed WIDTH_MAX. */
const SCALE = 110
const WIDTH_MAX = 24_000
const HEIGHT = 72
/** Number of speaker colours, which repeat. */
const COLOURS = 4

interface WaveformProps {
  readonly player: Player
  readonly transcript: Transcript | undefined
}

/** A waveform with the words below it. A click on either starts playback there. */
export function Waveform({ player, transcript }: WaveformProps) {
  const sound = player.sound.value
  const path = useMemo(() => (sound ? pathOf(barsOf(sound)) : ''), [sound])
  if (!sound) return null
  const width = Math.min(WIDTH_MAX, Math.max(280, sound.duration * SCALE))
  const scale = width / sound.duration
  const left = (seconds: number) => `${(seconds * scale).toFixed(1)}px`
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard.
    <section class="wave" tabIndex={0} aria-label="Waveform">
      <div class="wave-inside" style={{ width: `${width}px` }}>
        {transcript?.segments
          .filter(({ speaker }) => speaker)
          .map(({ start, end, speaker }) => (
            <span
              key={start}
              class={`turn-of ${colourOf(transcript, speaker)}`}
              style={{ left: left(start), width: left(end - start) }}
            >
              {speaker}
            </span>
          ))}
        <button
          type="button"
          class="loudness"
          aria-label="Play from the clicked position, or from the start"
          onClick={({ offsetX, detail }) => player.play(detail === 0 ? 0 : Math.max(0, offsetX / scale))}
        >
          <svg viewBox={`0 0 1000 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
            <path d={path} />
          </svg>
        </button>
        <span class="playhead" style={{ left: left(player.at.value) }} />
        {transcript && (
          <div class="words">
            {transcript.words.map(({ word, start, end, speaker }, nth) => (
              <button
                type="button"
                key={`${start}-${nth}`}
                class={`word ${nth % 2 ? 'low' : ''} ${colourOf(transcript, speaker)} ${
                  player.at.value >= start && player.at.value < end && player.isPlaying.value ? 'now' : ''
                }`}
                style={{ left: left(start) }}
                title={`${start.toFixed(2)} s to ${end.toFixed(2)} s`}
                onClick={() => player.play(start)}
              >
                {word}
              </button>
            ))}
          </div>
        )}
      </div>
    </section>
  )
}

export function colourOf({ speakers }: Transcript, speaker: string): string {
  return speaker ? `voice-${speakers.indexOf(speaker) % COLOURS}` : ''
}

function pathOf(bars: readonly number[]): string {
  const step = 1_000 / bars.length
  return bars
    .map((value, nth) => {
      const half = Math.max(0.6, (value * (HEIGHT - 4)) / 2)
      return `M${(nth * step).toFixed(2)} ${(HEIGHT / 2 - half).toFixed(1)}h${(step * 0.7).toFixed(2)}v${(half * 2).toFixed(1)}h-${(step * 0.7).toFixed(2)}z`
    })
    .join('')
}
