import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { fetchApi } from '#services/console/api/client.ts'
import { latencyText } from '#services/console/parts/time.ts'
import { download } from '#services/console/screens/playground/audio/download.ts'
import { PlayButton } from '#services/console/screens/playground/audio/play-button.tsx'
import { Player } from '#services/console/screens/playground/audio/player.ts'
import { Waveform } from '#services/console/screens/playground/audio/waveform.tsx'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { CallForm, TextField } from '#services/console/screens/playground/call/form.tsx'
import { Run } from '#services/console/screens/playground/call/run.ts'
import { optionsOf } from '#services/console/screens/playground/catalog.ts'

const PATH = '/v1/audio/speech'
/** The OpenAI SDK requires a voice, and most servers accept this one. */
const VOICE = 'alloy'

const run = new Run()
const player = new Player()
const model = signal('')
const text = signal('It was the best of times, it was the worst of times.')
const values = signal<Readonly<Record<string, string>>>({ voice: VOICE })
const generated = signal<{ readonly file: string; readonly audio: Blob; readonly note: string } | undefined>(undefined)

export function SpeechForm() {
  useEffect(() => () => player.stop(), [])
  return (
    <CallForm
      run={run}
      model={{ capability: 'speech', chosen: model }}
      fields={optionsOf(PATH, ['voice', 'speed', 'response_format', 'instructions'])}
      values={values}
      verb="Generate"
      isReady={text.value !== ''}
      send={generate}
      extra={generated.value && <PlayButton player={player} />}
      outcome={<GeneratedAudio />}
    >
      <TextField label="Text" text={text} rows={6} />
    </CallForm>
  )
}

function GeneratedAudio() {
  if (!generated.value) return run.isBusy.value ? <p class="dim">Generating audio…</p> : null
  const { file, audio, note } = generated.value
  return (
    <>
      <Waveform player={player} transcript={undefined} />
      <p class="actions">
        <button type="button" class="small" onClick={() => download(file, audio)}>
          Download {file}
        </button>
        <span class="dim took">{note}</span>
      </p>
    </>
  )
}

async function generate(options: Readonly<Record<string, unknown>>): Promise<void> {
  const into = `speech.${options.response_format ?? 'mp3'}`
  const body = { model: model.value, input: text.value, ...options }
  const call: Call = { name: 'speech', path: PATH, method: 'audio.speech', body, into }
  const startedAt = performance.now()
  generated.value = undefined
  player.stop()
  await run.start([call], async (abort) => {
    const audio = await (await fetchApi(PATH, { method: 'POST', body, signal: abort })).blob()
    const seconds = latencyText((performance.now() - startedAt) / 1_000)
    const isDrawn = await player.load(audio)
    // The request was stopped or replaced while the audio was decoded.
    if (abort.aborted) return
    const lasts = isDrawn
      ? `${(player.sound.value?.duration ?? 0).toFixed(1)} s of audio`
      : `${audio.size.toLocaleString()} bytes (not playable in this browser)`
    generated.value = { file: into, audio, note: `${lasts} in ${seconds}` }
  })
}
