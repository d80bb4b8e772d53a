import { signal } from '@preact/signals'
import type { z } from 'zod'
import type { ResearchAnnotation, ResearchEvent, ResearchSource } from '#schemas/research/research.ts'
import type { Call } from '#services/console/screens/playground/call/call.ts'
import { Run, streamed } from '#services/console/screens/playground/call/run.ts'

const PATH = '/v1/deep-research'

/** A cited sentence with its source and its position in the report. */
export type Citation = z.infer<typeof ResearchAnnotation>['url_citation']
export type Progress = Omit<Extract<ResearchEvent, { type: 'progress' }>, 'type'>
type Source = z.infer<typeof ResearchSource>

interface Chunk {
  readonly choices?: readonly {
    readonly delta: {
      readonly content?: string | null
      readonly annotations?: readonly { readonly url_citation: Citation }[]
    }
  }[]
  readonly research_progress?: Progress
  readonly search_results?: readonly Source[]
  readonly research?: { readonly stop_reason: string; readonly searches: number; readonly pages: number }
}

export interface Research {
  readonly progress: readonly Progress[]
  readonly report: string
  readonly citations: readonly Citation[]
  readonly note: string
}

export const run = new Run()
export const research = signal<Research | undefined>(undefined)

/** Starts a research run and follows it until the report is complete. */
export async function startResearch(
  model: string,
  question: string,
  options: Readonly<Record<string, unknown>>,
): Promise<void> {
  const body = { model, messages: [{ role: 'user', content: question }], ...options, stream: true }
  const call: Call = { name: model, path: PATH, body }
  let now: Research = { progress: [], report: '', citations: [], note: '' }
  research.value = now
  const startedAt = performance.now()
  const end = await run.start([call], async (abort) => {
    for await (const chunk of streamed<Chunk>(call, abort)) {
      now = applyChunk(now, chunk)
      research.value = now
    }
  })
  if (end === 'failed') return
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1)
  research.value = { ...now, note: end === 'stopped' ? 'stopped' : `${now.note} in ${seconds} s` }
}

function applyChunk(now: Research, { choices = [], research_progress: progress, research: how }: Chunk): Research {
  const { content, annotations } = choices[0]?.delta ?? {}
  return {
    progress: progress ? [...now.progress, progress] : now.progress,
    report: now.report + (content ?? ''),
    citations: annotations ? annotations.map(({ url_citation }) => url_citation) : now.citations,
    note: how
      ? `Searches: ${how.searches}, pages: ${how.pages}, stop reason: ${how.stop_reason.replace('_', ' ')}`
      : now.note,
  }
}
