import { renderTable, show } from '../figures/markdown.ts'
import type { TranscriptionResults } from './transcription.ts'
import type { Growth } from './uploads.ts'

/** The heading that the section of transcription begins with. */
export const TRANSCRIPTION_TITLE = '## Transcription'

/** What the section says before its figures. */
export const TRANSCRIPTION_INTRODUCTION = `The built-in model through the API of \`npm start\`. The test set is made in the run: recordings that two packages bring (LibriVox
readings of Austen, and readings of Dickens and Beckett), eight sentences by each of five voices of flite where that is
installed, and conversations of ten turns put together of these voices: *in turn*, with 0.3 s between, or *at random*, where
anybody says anything in any order and nobody waits. It is small: it tells that a model works, not how good it is.

**Words**: wrong, missing and additional words for each word that was said, without punctuation. **Speakers**: the diarization
error rate of \`diarized_json\` is the time that is missed, invented or given to somebody else for each second of speech, without
250 ms around each change; *confused* is the last part alone. Silence inside a recording counts as speech of its
speaker. *Speaker error* is stricter on the changes and blind to silence: of the time that both the truth and the answer call somebody's,
the part that is somebody else's, without any collar, as the mean of the recordings. Nobody says how many people talk. In the last row
one of them is heard at 8 kHz, as by telephone. *Right names* is the time with the right name when a sample of each voice is sent along. **Real-time
factor**: seconds of work for each second of audio, lower is faster; CPU counts all processes. **Uploads**: files of 25 MiB at
once, through a worker with a slot for each, to an upstream that reads all of each file.`

/** The section's tables, in Markdown. */
export function renderTranscription(results: TranscriptionResults): string[] {
  return [
    TRANSCRIPTION_TITLE,
    `Engine: ${results.engine}.`,
    renderWords(results),
    renderSpeakers(results),
    renderSpeed(results),
    renderMemory(results),
    ...results.skipped.map((reason) => `Not measured, ${reason}.`),
  ]
}

function renderWords({ words }: TranscriptionResults): string {
  const rows = words.map(({ what, clips, said, rate }) => [what, String(clips), String(said), percent(rate)])
  return renderTable(['words', 'recordings', 'words said', 'word error rate'], rows)
}

function renderSpeakers({ speakers }: TranscriptionResults): string {
  const rows = speakers.map(({ what, conversations, minutes, ...rates }) => {
    const { error, confusion, speakerError, named } = rates
    return [what, String(conversations), show(minutes, 1), ...[error, confusion, speakerError, named].map(percent)]
  })
  const head = [
    'speakers',
    'conversations',
    'minutes',
    'diarization error rate',
    'confused',
    'speaker error',
    'right names',
  ]
  return renderTable(head, rows)
}

function renderSpeed({ speed }: TranscriptionResults): string {
  const rows = speed.map(({ what, audioSeconds, wall, cpu }) => [
    what,
    show(audioSeconds, 1),
    show(wall, 3),
    show(cpu, 3),
  ])
  return renderTable(['real-time factor', 'seconds of audio', 'wall', 'CPU'], rows)
}

function renderMemory({ memory, uploads }: TranscriptionResults): string {
  const { files, fileMib, seconds, ingress, worker } = uploads
  const what = `${files} uploads of ${fileMib} MiB at once, ${show(seconds, 0)} s`
  const rows = [
    ["all of the above: Sluice's process", '–', show(memory.own, 0)],
    ['all of the above: the local model server', '–', show(memory.started, 0)],
    [`${what}: ${worker ? 'ingress' : 'one process'}`, ...growth(ingress)],
    ...(worker ? [[`${what}: worker`, ...growth(worker)]] : []),
  ]
  return renderTable(['memory, MiB', 'before', 'at most'], rows)
}

function growth({ before, most }: Growth): string[] {
  return [show(before, 0), show(most, 0)]
}

function percent(part: number): string {
  return `${show(100 * part, 1)} %`
}
