# make            set up .venv and build the ROS interfaces (instant when nothing changed)
# make demo       eight simulated arms served end to end, about two minutes
# make demo FLEET=factory   a fleet file's robots and services, and things that happen to them
# make demo ARM=so101       one simulated arm over its ROS 2 driver: so101, bi_so101 or franka
# make drill      the same with faults, and a judge; four to ten minutes (ARGS=--quick: two)
# make check      lint, types and the fast tests, for the inner loop: about a minute
# make test       lint, types and all tests
# make bench      benchmarks: ratios against the peer in one run
# make test ROS=jazzy      the tests that talk ROS, on the wheels of ROS 2 Jazzy; make check ROS=jazzy: a part of them
# make lock       resolve the lock files again from pyproject.toml
# make clean      remove everything that make made, except runs/

# ROS=jazzy: an environment of its own beside the first, and the tests that talk ROS
ROS ?= kilted
$(if $(filter kilted jazzy,$(ROS)),,$(error ROS=$(ROS); say kilted or jazzy))
VENV := .venv$(if $(filter jazzy,$(ROS)),-jazzy)
LOCK := requirements$(if $(filter jazzy,$(ROS)),-jazzy).lock
export ROS VENV LOCK
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE
export HF_HUB_OFFLINE ?= 1

# Options of make demo, for example: make demo ROBOTS=4 SCHEDULING=fifo HORIZON=static:10, or
# make demo CLOUD=1 (a cloud worker behind an emulated link), make demo CLOUD=1 CUT=20:5
ROBOTS ?=
# the model, as --policy elsewhere: a policy folder, a hub id, emulated:...
POLICY ?=
SCHEDULING ?=
HORIZON ?=
DURATION ?=
ARRIVALS ?=
SEED ?=
# cameras of the arms, such as corner2,gripperPOV:480x640
CAMERAS ?=
CLOUD ?=
CUT ?=
# make demo RVIZ=1 draws the fleet for rviz (docs/rviz.md)
RVIZ ?=
# make demo FLEET=factory: docs/factory.md; FLEET=PATH.yaml, EVENTS=intruder,knock, SEED and ARGS
FLEET ?=
EVENTS ?=
# make demo ARM=so101: docs/so101.md, docs/franka.md
ARM ?=
ARGS ?=

# For one release, POLICY=NAME of a scheduling policy is SCHEDULING=NAME; a folder of that name is ./NAME.
ifneq ($(filter fifo least_service oldest_task wait_ratio admit,$(firstword $(subst :, ,$(POLICY)))),)
$(if $(SCHEDULING),$(error POLICY=$(POLICY) names a scheduling policy, as does SCHEDULING=$(SCHEDULING); POLICY is the model now))
$(info note: POLICY=$(POLICY) is taken as SCHEDULING=$(POLICY); write that, POLICY is the model now)
override SCHEDULING := $(POLICY)
override POLICY :=
endif

.PHONY: all demo drill lint check test bench lock clean
all: $(VENV)/.built

$(VENV)/.deps: $(LOCK) tools/overrides.txt tools/setup.sh lerobot_policy_kairos/pyproject.toml
	@tools/setup.sh

INTERFACES := $(wildcard msg/*.msg srv/*.srv action/*.action)
$(VENV)/.built: $(VENV)/.deps CMakeLists.txt package.xml pyproject.toml cmake/pypi_wheels.cmake tools/build.sh \
    $(INTERFACES) $(wildcard overlays/*/* overlays/*/msg/* overlays/*/action/*) $(wildcard kairos_ros/*.py kairos_ros/*/__init__.py)
	@tools/build.sh

demo: all
ifneq ($(ARM),)
	@$(BIN)/kairos arm demo $(ARM) $(if $(POLICY),policy:=$(POLICY)) $(if $(HORIZON),horizon:=$(HORIZON)) \
	  $(if $(SEED),seed:=$(SEED)) $(if $(RVIZ),rviz:=true) $(if $(CAMERAS),cameras:=$(CAMERAS)) $(ARGS)
else ifneq ($(FLEET),)
	@$(BIN)/kairos fleet demo $(FLEET) $(if $(EVENTS),--events $(EVENTS)) \
	  $(if $(SEED),--seed $(SEED)) $(ARGS)
else
	@$(BIN)/kairos demo $(if $(ROBOTS),--robots $(ROBOTS)) $(if $(POLICY),--policy $(POLICY)) \
	  $(if $(SCHEDULING),--scheduling $(SCHEDULING)) $(if $(HORIZON),--horizon $(HORIZON)) \
	  $(if $(DURATION),--duration $(DURATION)) $(if $(ARRIVALS),--arrivals $(ARRIVALS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(CLOUD),--cloud) $(if $(CUT),--cloud-cut $(CUT)) $(if $(RVIZ),--rviz) \
	  $(if $(CAMERAS),--cameras $(CAMERAS)) $(ARGS)
endif

drill: all
	@$(BIN)/kairos drill $(if $(ROBOTS),--robots $(ROBOTS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: all
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# modules in the order of test/support/slow_mark.py, not by their numbers of tests; a test that ends its process fails,
# and is repeated in another one
PYTEST := $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder --max-worker-restart 2
ifeq ($(ROS),kilted)
# without what starts processes, loads torch or speaks DDS (test/support/slow_mark.py)
check: lint
	@$(PYTEST) --fast $(ARGS)
test: lint
	@$(PYTEST) $(ARGS)
else
# what distributions do differently: QoS, actions, lifecycle, parameters, services, namespaces, serialization
check: all
	@$(PYTEST) $(addprefix test/nodes/,robot/test_robot_node.py robot/test_robot_lifecycle.py \
	  serving/test_serving_node.py test_namespaces.py test_lifecycle.py test_live_parameters.py \
	  test_node_graph.py) test/recording/test_record_topics.py $(ARGS)
test: all
	@$(PYTEST) test/nodes test/recording test/robot test/viz test/dashboard test/telemetry test/vlm test/bringup \
	  test/host $(ARGS)
endif

bench: all
	@$(BIN)/python -m bench $(ARGS)

lock:
	@tools/lock.sh

clean:
	rm -rf .venv .venv-jazzy build .pytest_cache .ruff_cache .mypy_cache .hypothesis
