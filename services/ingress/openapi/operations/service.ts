import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

/** What is answered without a key, before the table of routes. */
export const SERVICE: Operations = {
  'GET /healthz': {
    id: 'getHealth',
    tag: 'Service',
    summary: 'Whether the process lives',
    answers: one('It does.', 'Health'),
  },
  'GET /health': {
    id: 'getHealthAsVllm',
    tag: 'Service',
    summary: 'The same, under its name in vLLM',
    answers: one('It does.', 'Health'),
  },
  'GET /readyz': {
    id: 'getReadiness',
    tag: 'Service',
    summary: 'Whether the process makes progress',
    answers: {
      200: { description: 'It does.', json: ['Ready'] },
      503: { description: 'It does not, for these reasons.', json: ['Ready'] },
    },
  },
  'GET /metrics': {
    id: 'getMetrics',
    tag: 'Service',
    summary: 'Metrics for Prometheus, from this machine or with an admin key, unless METRICS_PORT shows them elsewhere',
    answers: { 200: { description: 'The metrics.', media: ['text/plain'] } },
  },
  'GET /openapi.json': {
    id: 'getOpenApi',
    tag: 'Service',
    summary: 'This document',
    answers: { 200: { description: 'OpenAPI 3.1.', json: [] } },
  },
}
