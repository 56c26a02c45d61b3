"""The serving side: sessions, dispatch, action trimming, refusals. No ROS and no clock."""
